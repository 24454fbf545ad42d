"""Texts of others, as people are shown them."""

from __future__ import annotations

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
