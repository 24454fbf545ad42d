"""The creating and opening of a log."""

from __future__ import annotations

import secrets
import threading
from datetime import timedelta

from sharedlog._core.errors import InvalidRequest
from sharedlog._core.incarnation import new_log, read_incarnation
from sharedlog._engines.driving import carry_out
from sharedlog._engines.engine import Engine
from sharedlog._engines.opening import create_engine, open_engine
from sharedlog._log.log import Log
from sharedlog._log.place import Place

TIMEOUT = timedelta(seconds=30)


def create_log(url: str, *, timeout: timedelta = TIMEOUT) -> Log:
    """Make a log where there is none, and open it: ``sqlite:///FILE``, ``memory:NAME``.

    ``timeout``: see ``open``.
    Raises ``LogExists`` where something is already, ``InvalidRequest`` for another URL,
    ``LogUnavailable``.
    """
    _check_timeout(timeout)
    incarnation = secrets.token_hex(8)
    return _log(url, create_engine(url, new_log(incarnation)), incarnation, timeout)


def open_log(url: str, *, incarnation: str | None = None, timeout: timedelta = TIMEOUT) -> Log:
    """Open a log that ``create`` made.

    ``timeout``: how long an append that is not answered is sent again before its outcome is told
    to be unknown.
    ``incarnation``: the one that the log must have, as ``Log.incarnation`` said before.
    Raises ``NoSuchLog`` (also for an empty file: opening makes nothing), ``NewerFormat``,
    ``LogForked`` where the log is of another incarnation, ``CorruptLog``, ``LogUnavailable``.
    """
    _check_timeout(timeout)
    engine = open_engine(url)
    try:
        found = carry_out(engine, read_incarnation(incarnation))
    except BaseException:
        engine.close()
        raise
    return _log(url, engine, found, timeout)


def _check_timeout(timeout: timedelta) -> None:
    if timeout < timedelta(0):
        raise InvalidRequest(f"a timeout of {timeout}; it is no time, or more")


def _log(url: str, engine: Engine, incarnation: str, timeout: timedelta) -> Log:
    return Log(url, Place(engine, incarnation, timeout.total_seconds(), threading.Event()))
