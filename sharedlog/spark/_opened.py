"""Logs that this process has open, for all of its tasks."""

from __future__ import annotations

import threading

from sharedlog._engines.elsewhere import refuse_served
from sharedlog._log.log import Log
from sharedlog._log.opening import open_log
from sharedlog._log.place import Place

_open: dict[str, Log] = {}
_lock = threading.Lock()


def place_of(url: str, incarnation: str | None = None) -> Place:
    """Return where a log is, opened once; Spark's processes end without closing what they have.

    ``incarnation``: the one that the query was planned for. Raises as ``sharedlog.open``, and
    ``InvalidRequest`` for a served log: executors read the log itself.
    """
    with _lock:
        log = _open.get(url)
        if log is None:
            log = _open[url] = open_log(url, incarnation=incarnation)
    refuse_served(log._place.engine)
    return log._place
