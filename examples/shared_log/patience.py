"""The opening of a log whose server may just be starting."""

from __future__ import annotations

import time
from datetime import timedelta

import sharedlog

__all__ = ["open_log"]

# How long a process asks a log that does not answer.
_PATIENCE = timedelta(minutes=1)
_PAUSE_S = 0.2


def open_log(url: str) -> sharedlog.Log:
    """Open the log, and ask again while its server does not answer; appends wait as long."""
    end = time.monotonic() + _PATIENCE.total_seconds()
    while True:
        try:
            return sharedlog.open(url, timeout=_PATIENCE)
        except sharedlog.LogUnavailable:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_S)
