"""The owner of a log: a group's log and a shared one are told of in different words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from _rifl_ground.log import get_logger
from sharedlog._core import errors

if TYPE_CHECKING:
    import structlog


class Owner(NamedTuple):
    """How what goes wrong at a server, or with a file, is told to those who use it.

    ``events``: where they are logged; ``event``: the name of the one that a handle on a file has
    stopped; ``guide``: the page that operators are sent to; ``remedy``: the command by which one
    accepts that something is lost. The errors: the request was sent and its fate is not known
    (``unavailable``; ``full``: it was refused for lack of room; ``stopped``: nothing is done
    through this handle any more; ``not_begun``: that, of what was not even begun), what is there
    is not what was written, the request can never be done, and the server may forget what it
    acknowledges.
    """

    events: structlog.stdlib.BoundLogger
    event: str
    guide: str
    remedy: str
    unavailable: type[Exception]
    full: type[Exception]
    stopped: type[Exception]
    corrupt: type[Exception]
    invalid: type[Exception]
    not_durable: type[Exception]
    not_begun: Callable[[str], Exception]

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a call to a server raises: to be caught by what goes on without an answer."""
        return (self.unavailable, self.corrupt, self.invalid)


def refused(found: Exception, *, whole: bool = True) -> Exception:
    """Return an error of what the user's rights do not allow: told at once, and not asked again.

    ``whole``: nothing of the request was done.
    """
    if isinstance(found, errors.LogUnavailable):
        found.passing = False
    return nothing_done(found) if whole else found


def nothing_done(found: Exception) -> Exception:
    """Return an error of a request of which nothing was done."""
    if isinstance(found, errors.LogUnavailable):
        found.appended = False
    return found


class Home(NamedTuple):
    """Where a log is kept in a server, and whose it is.

    ``root``: how its keys begin. ``format``: the newest that is known here. ``remedy``: the command
    by which an operator accepts that something is lost, if there is one.
    """

    owner: Owner
    root: str
    format: int
    remedy: str = ""


def _not_begun(why: str) -> errors.LogStopped:
    found = errors.LogStopped(why)
    found.appended = False
    return found


LOG = Owner(
    get_logger("sharedlog"),
    "shared_log_stopped",
    "docs/reference/log-engines.md",
    "accept the loss (sharedlog accept-loss)",
    errors.LogUnavailable,
    errors.LogFull,
    errors.LogStopped,
    errors.CorruptLog,
    errors.InvalidRequest,
    errors.NotDurable,
    _not_begun,
)
