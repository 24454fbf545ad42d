"""The pages of the docs, found by their names, in whichever folder they lie."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DOCS", "PAGES", "page"]

DOCS = Path(__file__).parents[2] / "docs"
# But for those that the code writes (``make reference``).
PAGES = [each for each in sorted(DOCS.rglob("*.md")) if each.parent.name != "api"]


def page(name: str) -> Path:
    """Return the one page of this file name."""
    (found,) = (each for each in PAGES if each.name == name)
    return found
