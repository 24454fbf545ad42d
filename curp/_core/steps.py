"""What more than one rule of a leadership asks of its shell (DESIGN §7)."""

from __future__ import annotations

from typing import NamedTuple


class Sync(NamedTuple):
    """Wait until the log has everything up to ``lsn``; None: all that has a place by now.

    ``timeout_s``: after that many seconds the shell raises; None: it waits as long as the
    leadership lasts.
    """

    lsn: int | None = None
    timeout_s: float | None = None
