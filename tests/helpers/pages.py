"""The pages of the docs, found by their names, in whichever folder they lie."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DOCS", "FRONT_PAGES", "GENERATED", "PAGES", "ROOT", "page", "table_rows"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Those that the code writes (``make reference``), and those that people write.
GENERATED = sorted((DOCS / "reference" / "api").glob("*.md"))
PAGES = [each for each in sorted(DOCS.rglob("*.md")) if each not in GENERATED]
# What a reader of each kind begins with. Some pages in the folders have the same names.
FRONT_PAGES = [DOCS / name for name in ("grpc.md", "events.md", "spark.md")]


def page(name: str) -> Path:
    """Return the one page of this file name that is no front page."""
    (found,) = (each for each in PAGES if each.name == name and each not in FRONT_PAGES)
    return found


def table_rows(name: str) -> list[str]:
    """Return the rows of a page, one for each name of ``| this; that | cell |``."""
    found = []
    for line in page(name).read_text().splitlines():
        if line.startswith("| "):
            names, cells = line.removeprefix("| ").split("|", 1)
            found += [f"| {one} |{cells}".replace("  ", " ") for one in names.strip().split("; ")]
    return found
