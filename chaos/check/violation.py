"""``Violation``: a rule that a history breaks."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Violation"]


class Violation(NamedTuple):
    """A rule that a history breaks, by which call (or account, append, follower), and how."""

    rule: str
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.text}"
