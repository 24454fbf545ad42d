"""Events of the lease server: where it tells what it decides."""

from __future__ import annotations

from typing import Any, Protocol


class Events(Protocol):
    """Hears what was decided, as a structlog logger does: a name, and fields. Any thread."""

    def info(self, event: str, **fields: Any) -> Any:
        """Hear of what was decided."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Hear of what an operator may have to see to."""


class _Unheard:
    def info(self, event: str, **fields: Any) -> None:
        """Nobody listens."""

    def warning(self, event: str, **fields: Any) -> None:
        """Nobody listens."""


UNHEARD: Events = _Unheard()
