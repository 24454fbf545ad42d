"""Structured events that go where the application's own logs go.

structlog is used where the application has imported it. It takes a third of what most processes
import, with rich where that is installed: a first event, as of the first overload, would have an
event loop stand still for that.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import structlog


class Events(Protocol):
    """Hears what was decided, as a structlog logger does: a name, and fields. Any thread."""

    def info(self, event: str, **fields: Any) -> Any:
        """Hear of what was decided."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Hear of what an operator may have to see to."""


def _ignore(event: str, **fields: Any) -> None:
    """Do nothing."""


class _Unheard:
    info = warning = staticmethod(_ignore)


UNHEARD: Events = _Unheard()


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a structlog logger for a library.

    Once the application has configured structlog, events go through that;
    before, to the ``logging`` logger of this name, so that a library's debug
    events never land on an unprepared program's standard output.
    """
    return cast("structlog.stdlib.BoundLogger", _Logger(name))


class _Logger:
    """Tells ``logging``, as structlog would, until structlog is there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        if "structlog" not in sys.modules:
            return partial(_tell, logging.getLogger(self._name), method)
        # Kept where the next use finds it.
        found = getattr(_made(self._name), method)
        setattr(self, method, found)
        return found


def _tell(logger: logging.Logger, method: str, event: str, /, **fields: Any) -> None:
    with_error = fields.pop("exc_info", method == "exception")
    level = (
        logging.ERROR if method == "exception" else logging.getLevelNamesMapping()[method.upper()]
    )
    if logger.isEnabledFor(level):
        told = " ".join(f"{name}={value!r}" for name, value in {"event": event, **fields}.items())
        logger.log(level, "%s", told, exc_info=with_error)


def _made(name: str) -> structlog.stdlib.BoundLogger:
    import structlog

    def route(
        logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if structlog.is_configured():
            getattr(structlog.get_logger(name), method)(**event)
            raise structlog.DropEvent
        return event

    bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            route,
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return bound


def log_to_stderr(*, as_json: bool = False) -> None:
    """Have a command's events go to standard error: standard output says what it was asked for.

    A traceback shows no values: structlog's own configuration shows local variables, and with
    them secrets, where rich is installed.
    """
    import structlog

    renderer: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    if as_json:
        renderer = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
