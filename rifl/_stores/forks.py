"""Refusals of what a forked child inherits: everything of a server is its own process's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from _rifl_ground.forks import REMEDY, refuse_in_children
from _rifl_ground.refusals import Outcome
from rifl.core._shared.errors import ForkedProcess


class ForkedServer(ForkedProcess):
    """Part of a server was made in a parent process: make it again after the fork.

    Nothing of this call ran here; what another server did with it cannot be told.
    """

    outcome = Outcome.UNKNOWN


def forked_error(what: str) -> ForkedProcess:
    """Build what a forked child's use of ``what`` raises."""
    return ForkedServer(f"this {what} belongs to the parent process: {REMEDY}")


def belongs_here(made: Any, what: str) -> None:
    """Have every public method of ``made`` raise ``ForkedProcess`` in forked children.

    But for ``close`` and ``aclose``, which do nothing there.
    """
    error: Callable[[], Exception] = partial(forked_error, what)
    refuse_in_children(made, error)
