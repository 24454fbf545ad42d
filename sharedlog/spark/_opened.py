"""Logs that this process has open, for all of its tasks."""

from __future__ import annotations

import threading

from sharedlog._core.errors import CorruptLog, InvalidRequest, LogError, LogStopped
from sharedlog._core.incarnation import read_incarnation
from sharedlog._log.log import Log
from sharedlog._log.opening import is_served, open_log
from sharedlog._log.place import Place

_open: dict[str, Log] = {}
_lock = threading.Lock()


def place_of(url: str, incarnation: str | None = None) -> Place:
    """Return where a log is, opened once; Spark's processes end without closing what they have.

    It is opened anew where the files were replaced, or an operator declared it restored: these
    processes are kept for many queries, and no other code can have them open it again.
    ``incarnation``: the one that the query was planned for. Raises as ``sharedlog.open``, and
    ``InvalidRequest`` for a served log: executors read the log itself.
    """
    if is_served(url):
        raise InvalidRequest(
            "a query opens the log itself: give the URL of its store, not of a server"
        )
    with _lock:
        log = _open.get(url)
        if log is not None and not _stands(log):
            log.close()
            log = None
        if log is None:
            log = _open[url] = open_log(url, incarnation=incarnation)
    return log._place


def _stands(log: Log) -> bool:
    """Whether a log that was opened is still the one that is there.

    Its next use raises what else is wrong with it: a handle that saw more than there is stays
    away from it.
    """
    place = log._place
    try:
        return place.run(read_incarnation()) == place.incarnation
    except LogStopped:
        return False
    except CorruptLog:
        return not _declared(log)
    except LogError:
        return True


def _declared(log: Log) -> bool:
    """Whether an operator has said of the log that is there now that it is another one."""
    try:
        with open_log(log._url) as now:
            return now.incarnation != log.incarnation
    except LogError:
        return False
