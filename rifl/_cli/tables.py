"""Tables for terminals: by rich where it is installed, else in plain columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from _rifl_ground.texts import printable


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns whose name ends with ``#`` are numbers, to the right.

    Off a terminal it is plain columns, for ``grep`` and ``awk``. What comes from
    stores is printed with control characters made visible.
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        try:
            _print_rich(title, columns, shown)
        except ImportError:
            pass
        else:
            return
    _print_plain(title, columns, shown)


def _print_rich(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column.rstrip("#"), justify="right" if column.endswith("#") else "left")
    for row in rows:
        # As text: a stored name is no markup.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def _print_plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    names = [column.rstrip("#") for column in columns]
    widths = [
        max(len(name), *(len(row[at]) for row in rows)) if rows else len(name)
        for at, name in enumerate(names)
    ]
    lines = [f"{title}:"] if title else []
    for row in (names, *rows):
        cells = [
            cell.rjust(width) if column.endswith("#") else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    sys.stdout.write("\n".join(lines) + "\n\n")
