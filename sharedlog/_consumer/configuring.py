"""``Consumer(configure=...)``: the user's function that is called with each new connection."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from _rifl_ground.loans import Loan
from sharedlog._consumer.lending import handler_ended
from sharedlog._core.errors import HandlerEnded, InvalidRequest, LogError

Configure = Callable[[Any], object]


def check_configure(configure: object) -> None:
    """Raise ``InvalidRequest`` for what is no function, or one whose call would do nothing."""
    if configure is not None and (
        not callable(configure)
        or inspect.iscoroutinefunction(configure)
        or inspect.isgeneratorfunction(configure)
    ):
        raise InvalidRequest(f"configure={configure!r:.100}: it is a function of a connection")


def configure_by(
    configure: Configure, lent: Callable[[Loan], Any], passed: type[Exception]
) -> None:
    """Call the function with a connection that is lent to it.

    ``passed``: the driver's errors, which pass unchanged. Raises ``InvalidRequest`` for
    what else the function raises.
    """
    loan = Loan(_configured)
    try:
        configure(lent(loan))
    except (LogError, passed):
        raise
    except Exception as error:
        raise InvalidRequest(f"configure= raised {type(error).__name__}: {error}") from error
    finally:
        loan.over = True


def refuse_settings(what: str) -> InvalidRequest:
    """Return what a function gets that has left a connection as the consumer cannot use it."""
    return InvalidRequest(
        f"configure= has {what}: the consumer begins and ends the connection's transactions. Undo "
        "that before the function returns"
    )


def _configured() -> HandlerEnded:
    return HandlerEnded(
        "the connection that configure= was called with is of no use once it has returned: "
        f"handlers have effects.connection ({handler_ended()})"
    )
