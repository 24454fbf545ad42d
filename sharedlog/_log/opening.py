"""The creating and opening of a log."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from _rifl_ground.log import get_logger
from sharedlog._core.arguments import check_text, check_time
from sharedlog._core.errors import (
    InvalidRequest,
    LogForked,
    LogFull,
    LogStopped,
    LogUnavailable,
)
from sharedlog._core.incarnation import new_log, read_incarnation
from sharedlog._core.observer import LogObserver
from sharedlog._core.sealing import Seals, Transform
from sharedlog._engines.driving import carry_out
from sharedlog._engines.engine import Engine
from sharedlog._engines.opening import create_engine, has_server, open_engine
from sharedlog._log.log import Log
from sharedlog._log.observing import LogObservers, check_observers, told_name
from sharedlog._log.place import Place

_log = get_logger("sharedlog")
_T = TypeVar("_T")
TIMEOUT = timedelta(seconds=30)
_SHORTEST_S, _LONGEST_S = 0.05, 1.0


def create_log(
    url: str,
    *,
    timeout: timedelta = TIMEOUT,
    observer: LogObserver | Sequence[LogObserver] | None = None,
    seal: Transform | None = None,
    unseal: Transform | None = None,
) -> Log:
    """Make a new log and open it: ``sqlite:///FILE``, ``memory:NAME``.

    The arguments are those of ``open``. Raises ``LogExists`` if there is a log already,
    ``InvalidRequest`` for another URL, and ``LogUnavailable``.
    """
    _check(url, timeout, observer)
    if is_served(url):
        raise InvalidRequest("a served log is made where it lives, before it is served")
    seals = Seals.of(seal, unseal)
    incarnation = secrets.token_hex(8)
    keys = new_log(incarnation)
    engine = patiently(
        url, timeout, lambda: create_engine(url, keys, patience_s=timeout.total_seconds())
    )
    return _opened(url, engine, incarnation, timeout, observer, seals)


def open_log(
    url: str,
    *,
    incarnation: str | None = None,
    timeout: timedelta = TIMEOUT,
    observer: LogObserver | Sequence[LogObserver] | None = None,
    seal: Transform | None = None,
    unseal: Transform | None = None,
) -> Log:
    """Open a log that ``create`` made, or that a server has: ``grpc://HOST:PORT``, ``grpcs://``.

    ``incarnation``: the one that the log must have, as ``Log.incarnation`` said before.
    ``timeout``: how long to retry while a server does not answer. An append without an answer is
    sent again for so long, then its outcome is unknown. In SQLite it is also the longest wait
    for other writers of the file; after that nothing is appended.
    ``observer``: one or several, which are told what this handle does with the log.
    ``seal``, ``unseal``: your encryption of messages, ``seal(data, associated)`` and
    ``unseal(data, associated)``, bytes to bytes; both or neither. Any thread can call them, several
    at once. ``data`` is a whole envelope (value, key, headers and ``About``). ``associated`` says
    where it belongs, as a rule ``stream/partition``: authenticate it, and a message that was moved
    elsewhere does not open. Messages that were published before, unsealed, can still be read.
    Raises ``NoSuchLog`` (also for an empty file: opening makes nothing), ``NewerFormat``,
    ``LogForked`` if the log has another incarnation, ``CorruptLog``, ``LogUnavailable``.
    """
    _check(url, timeout, observer)
    if incarnation is not None:
        check_text(incarnation, "incarnation")
    seals = Seals.of(seal, unseal)

    def attempt() -> tuple[Engine, str]:
        engine = _engine(url, timeout.total_seconds())
        try:
            return engine, carry_out(engine, read_incarnation(incarnation))
        except BaseException:
            engine.close()
            raise

    try:
        engine, found = patiently(url, timeout, attempt)
    except LogUnavailable as error:
        # Opening appends nothing, also where a connection was never made.
        error.appended = False
        raise
    except LogForked as error:
        _log.error("log_forked", log=told_name(url), error=str(error))
        raise
    return _opened(url, engine, found, timeout, observer, seals)


def patiently(url: str, timeout: timedelta, attempt: Callable[[], _T]) -> _T:
    """Try again for that time while a server does not answer, as one that starts."""
    end = time.monotonic() + timeout.total_seconds()
    pause_s, told = _SHORTEST_S, False
    while True:
        try:
            return attempt()
        except LogUnavailable as error:
            left_s = end - time.monotonic()
            lasting = isinstance(error, LogFull | LogStopped) or not error.passing
            if lasting or left_s <= 0 or not has_server(url):
                raise
            if not told:
                told = True
                _log.warning("log_not_open_yet", log=told_name(url), error=str(error))
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_S)


def is_served(url: str) -> bool:
    """Whether a URL names a server that has a log."""
    return url.partition(":")[0] in ("grpc", "grpcs")


def _engine(url: str, patience_s: float) -> Engine:
    if is_served(url):
        from sharedlog._remote.remote import RemoteLog

        return RemoteLog(url)
    return open_engine(url, patience_s=patience_s)


def _check(
    url: str, timeout: timedelta, observer: LogObserver | Sequence[LogObserver] | None
) -> None:
    check_text(url, "url")
    if "\0" in url:
        raise InvalidRequest("a URL has no character 0")
    check_time(timeout, "timeout")
    check_observers(observer)


def _opened(
    url: str,
    engine: Engine,
    incarnation: str,
    timeout: timedelta,
    observer: LogObserver | Sequence[LogObserver] | None,
    seals: Seals | None,
) -> Log:
    name = told_name(url)
    observers = LogObservers.of(name, observer)
    closing = threading.Event()
    return Log(
        url,
        Place(engine, incarnation, timeout.total_seconds(), closing, name, observers, seals),
    )


# As ``sharedlog`` has them.
create = create_log
open = open_log  # noqa: A001 - sharedlog.open
