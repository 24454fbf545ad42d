"""Texts of others, as people are shown them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Tuple = TypeVar("_Tuple", bound=tuple[Any, ...])

MOST_SHOWN = 1000


def printable(text: str) -> str:
    """Return a text with what moves or turns a line around escaped.

    That is: control characters, line ends, and the marks that change a text's direction.
    """
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else repr(char)[1:-1] for char in text])


def one_line(text: str, most: int = MOST_SHOWN) -> str:
    """Return a text of another process on one line, ``printable``, of ``most`` characters.

    A longer one ends with an ellipsis. A text that this returned comes back unchanged.
    """
    # Enough for all that is shown: a text of megabytes is not looked through.
    line = printable(" ".join(text[: 2 * most].split()))
    return line if len(line) <= most and len(text) <= 2 * most else line[: most - 1] + "…"


def hides(*names: str) -> Callable[[type[_Tuple]], type[_Tuple]]:
    """Have the ``repr`` of a named tuple show ``...`` for these fields, which are secrets."""

    def hidden(cls: type[_Tuple]) -> type[_Tuple]:
        fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]

        def shown(self: Any) -> str:
            pairs = zip(fields, self, strict=True)
            parts = [f"{n}={'...' if n in names and value else repr(value)}" for n, value in pairs]
            return f"{type(self).__name__}({', '.join(parts)})"

        cls.__repr__ = shown  # type: ignore[method-assign]
        return cls

    return hidden
