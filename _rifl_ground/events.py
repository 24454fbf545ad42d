"""A row of the tables of events: what an operator is told of each (docs/reference/api/runbook.md).

Each package has such a table in its ``_events``, which no program imports: ``make reference``
writes the pages from them, and a test compares them with what the code logs. Beside it are
``ERRORS``: until when each error can wait, by its class's name (what it means and what to do is
its docstring); and ``LOOK``: the command that shows more, if one does, by an error's class, or by
the beginning of an event's logger and name (the longest one counts).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

# "now" pages, "today" is a ticket.
Until = Literal["", "now", "today", "no need"]


class Event(NamedTuple):
    """An event of the log.

    ``level``: one, or several with commas; ``fields``: their names, with spaces. What is more than
    an info also has ``do``, and ``until`` when that can wait: "now" if calls or messages are
    refused or acknowledged data is in danger. Or there is "no need": it passes by itself, or an
    operator did it on purpose. In texts ``docs/PAGE.md#heading`` is a link.
    """

    name: str
    level: str
    fields: str
    means: str
    do: str = ""
    until: Until = ""
