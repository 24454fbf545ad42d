"""Docstrings and other texts of the code as Markdown of ``docs/reference/api``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["linked", "paragraphs", "prose"]


def prose(value: Any) -> Iterator[str]:
    """Turn a docstring into Markdown: literals, and blocks of code."""
    text = inspect.getdoc(value) or ""
    if inspect.ismodule(value):
        # What follows maps its private modules.
        text = re.split(r"^- ``", text, flags=re.MULTILINE)[0]
    block: list[str] | None = None
    opens = False
    for line in [*text.split("\n"), ""]:
        indented = line.startswith("    ")
        if opens and indented:
            block, opens = [], False
            yield "```python"
        if block is not None:
            if indented or not line:
                block.append(line[4:])
                continue
            yield from _closed(block)
            block = None
        if line:
            opens = line.endswith("::")
        if line == "::":
            continue
        line = re.sub(r"::$", ":", line)
        yield linked(re.sub(r"``([^`]+)``", r"`\1`", line))
    if block is not None:
        yield from _closed(block)


def _closed(block: list[str]) -> Iterator[str]:
    while block and not block[-1]:
        block.pop()
    yield from (*block, "```", "")


def paragraphs(value: Any) -> list[str]:
    """Return a docstring's paragraphs, each as one line."""
    text = re.sub(r"``([^`]+)``", r"`\1`", inspect.getdoc(value) or "")
    return [" ".join(each.split()) for each in text.split("\n\n")]


def linked(text: str) -> str:
    """Return a text in which ``docs/PAGE.md#heading`` is a link from these pages."""

    def link(found: re.Match[str]) -> str:
        page, heading = found[1], found[2] or ""
        named = heading[1:] or page.removesuffix(".md").rpartition("/")[2]
        above = "../" if page.startswith("reference/") else "../../"
        to = (above + page.removeprefix("reference/")).removeprefix("../api/")
        return f"[{named.replace('-', ' ')}]({to}{heading})"

    return re.sub(r"\bdocs/([\w/-]+\.md)(#[\w-]+)?", link, text)
