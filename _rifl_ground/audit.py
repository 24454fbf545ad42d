"""The audit: what operators do, one event for each act."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from _rifl_ground.log import get_logger
from _rifl_ground.refusals import Outcome, StoreUnavailable

_log = get_logger("rifl.audit")
_MOST_CHARS = 1_000


def acted(caller: str, verb: str, what: str, error: BaseException | None = None) -> None:
    """Write that an operator acted, or tried to; hold no lock.

    ``caller``: a token's name, the names in a certificate, an address, or a user. ``error``: what
    it ended with. A logger that raises changes nothing.
    """
    outcome = _outcome(error)
    said = "" if error is None else str(error) or type(error).__name__
    with suppress(Exception):
        _log.warning(
            "operator_acted",
            caller=caller,
            verb=verb,
            object=what[:_MOST_CHARS],
            outcome=outcome,
            error=said[:_MOST_CHARS],
        )


@contextmanager
def acting(
    verb: str,
    what: str,
    caller: str = "",
    tell: Callable[[str, str, str, BaseException | None], None] = acted,
) -> Iterator[None]:
    """Write what the block did, once it has ended. By default the caller is this process's user."""
    caller = caller or this_user()
    try:
        yield
    except BaseException as error:
        tell(caller, verb, what, error)
        raise
    tell(caller, verb, what, None)


def this_user() -> str:
    """Return who runs this process, and where."""
    try:
        name = getpass.getuser()
    except (KeyError, ImportError, OSError):
        # A container's user may have no name.
        name = "unknown"
    return f"{name}@{socket.gethostname()}"


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "done"
    if getattr(error, "denied", None) is not None:
        return "refused"
    nothing_done = getattr(error, "appended", None) is False
    nothing_done |= getattr(error, "outcome", None) is Outcome.NOT_EXECUTED
    # Of a write that an operator asked for its acknowledgement may be what was lost.
    nothing_done &= not isinstance(error, StoreUnavailable)
    return "failed" if nothing_done else "unknown"
