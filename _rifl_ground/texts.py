"""Texts of others, and tables of them, as people are shown them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns whose name ends with ``#`` are numbers, to the right.

    By rich on a terminal where that is installed, else plain columns, for ``grep`` and ``awk``.
    What comes from stores and logs is printed with control characters made visible. Columns
    without names have no heading.
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        try:
            _print_rich(title, columns, shown)
        except ImportError:
            pass
        else:
            return
    names = [column.rstrip("#") for column in columns]
    widths = [max(map(len, cells)) for cells in zip(names, *shown, strict=True)]
    lines = ["", f"{title}:"] if title else []
    for row in (names, *shown) if any(names) else shown:
        cells = [
            cell.rjust(width) if column.endswith("#") else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    sys.stdout.write("\n".join(lines) + "\n")


def _print_rich(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_header=any(columns), header_style="bold")
    for column in columns:
        table.add_column(column.rstrip("#"), justify="right" if column.endswith("#") else "left")
    for row in rows:
        # As text: a stored name is no markup.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


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
