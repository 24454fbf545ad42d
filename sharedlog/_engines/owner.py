"""The owner of a log: groups and logs share connections, and have errors of their own."""

from __future__ import annotations

from typing import NamedTuple

import structlog

from rifl._log import get_logger
from sharedlog._core import errors


class Owner(NamedTuple):
    """How what goes wrong at a server is told to those who use it.

    ``events``: where they are logged; ``guide``: the page that operators are sent to. The errors:
    the request was sent and its fate is not known (``unavailable``; ``full``: it was refused for
    lack of room; ``stopped``: this handle was closed), what is there is not what was written, the
    request can never be done, and the server may forget what it acknowledges.
    """

    events: structlog.stdlib.BoundLogger
    guide: str
    unavailable: type[Exception]
    full: type[Exception]
    stopped: type[Exception]
    corrupt: type[Exception]
    invalid: type[Exception]
    not_durable: type[Exception]

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a call to a server raises: to be caught by what goes on without an answer."""
        return (self.unavailable, self.corrupt, self.invalid)


class Home(NamedTuple):
    """Where a log is kept in a server, and whose it is.

    ``root``: how its keys begin. ``head``: the name of the one that says which log it is, where
    logs of other formats may be in the same place: ``format`` is the one that is known here, and
    ``others`` are names of what earlier ones have there. ``remedy``: the command by which an
    operator accepts that something is lost, if there is one.
    """

    owner: Owner
    root: str
    head: str
    format: int
    others: tuple[str, ...] = ()
    remedy: str = ""


LOG = Owner(
    get_logger("sharedlog"),
    "docs/log-engines.md",
    errors.LogUnavailable,
    errors.LogFull,
    errors.LogStopped,
    errors.CorruptLog,
    errors.InvalidRequest,
    errors.NotDurable,
)
