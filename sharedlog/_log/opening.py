"""The creating and opening of a log."""

from __future__ import annotations

import secrets

from sharedlog._core.incarnation import new_log, read_incarnation
from sharedlog._engines.driving import carry_out
from sharedlog._engines.opening import create_engine, open_engine
from sharedlog._log.log import Log


def create_log(url: str) -> Log:
    """Make a log where there is none, and open it: ``sqlite:///FILE``, ``memory:NAME``.

    Raises ``LogExists`` where something is already, ``InvalidRequest`` for another URL,
    ``LogUnavailable``.
    """
    incarnation = secrets.token_hex(8)
    return Log(url, create_engine(url, new_log(incarnation)), incarnation)


def open_log(url: str, *, incarnation: str | None = None) -> Log:
    """Open a log that ``create`` made.

    ``incarnation``: the one that the log must have, as ``Log.incarnation`` said before.
    Raises ``NoSuchLog`` (also for an empty file: opening makes nothing), ``NewerFormat``,
    ``LogForked`` where the log is of another incarnation, ``CorruptLog``, ``LogUnavailable``.
    """
    engine = open_engine(url)
    try:
        found = carry_out(engine, read_incarnation(incarnation))
    except BaseException:
        engine.close()
        raise
    return Log(url, engine, found)
