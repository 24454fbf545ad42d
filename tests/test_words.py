"""Words of the project: what docs, docstrings, comments, error texts and help may not say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.house.imports import PRODUCT, ROOT, files, tree_of
from benchmarks.house.operating import events
from tests.helpers.pages import PAGES

README = ROOT / "README.md"
CHECKED = (*PRODUCT, "chaos", "examples", "benchmarks")
LONGEST_SENTENCE, LONGEST_LINE = 40, 100
# Each has a plain form: the thread, process or client by its name, "must", "in flight", "release".
PHRASES = (
    "as it is",
    "for ever",
    "is to be",
    "let go of",
    "lets go of",
    "nobody",
    "of before",
    "of ours",
    "somebody",
    "take that",
    "time is over",
    "under way",
    "what is given up",
    "what of it",
    "where none is said",
    "where nothing is said",
    "whoever",
)
# Of comments and texts a phrase may go on in the next line.
_GAP = r"[\s#\"]+"
_BANNED = re.compile(
    rf"(?<![\w\"'`.])(?:{'|'.join(each.replace(' ', _GAP) for each in PHRASES)})(?![\w\"'`]| = )",
    re.IGNORECASE,
)
_DEFINED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_the_check_sees_what_it_looks_for() -> None:
    """A phrase over two lines, a long sentence; not a value of the API."""
    assert list(banned("It is not\nunder way.")) == ["under way"]
    assert list(banned('`sessions_from` is "nobody" by default.')) == []
    assert len(list(long_sentences("word " * 41 + "end. Short."))) == 1
    assert list(long_sentences("word " * 39 + "end. Short.")) == []


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda each: each.name)
def test_a_page_is_in_plain_words(page: Path) -> None:
    """No banned phrase, no sentence of over 40 words, no line of over 100 characters."""
    text = page.read_text()
    prose = _prose(text)
    assert list(banned(prose)) == []
    assert list(long_sentences(prose)) == []
    assert [line for line in _lines(text) if len(line) > LONGEST_LINE] == []


@pytest.mark.parametrize(
    ("name", "most"), [("README.md", 150), ("docs/explanation/developing.md", 180)]
)
def test_what_all_read_first_is_short(name: str, most: int) -> None:
    """README and tour have a bound of lines."""
    assert len((ROOT / name).read_text().splitlines()) <= most


@pytest.mark.parametrize("page", PAGES, ids=lambda each: each.name)
def test_a_page_opens_with_what_a_reader_can_do(page: Path) -> None:
    """The first paragraph after the title is a sentence."""
    title, opening = page.read_text().split("\n\n")[:2]
    assert re.fullmatch(r"# .+", title)
    assert re.match(r"[A-Z`\[*]", opening), opening
    assert opening.rstrip().endswith((".", ":")), opening


@pytest.mark.parametrize("package", CHECKED)
def test_code_is_in_plain_words(package: str) -> None:
    """Docstrings, comments and texts of a package say no banned phrase, in no long sentence."""
    found = [
        f"{file.relative_to(ROOT)}: {said}"
        for file in files(package)
        for said in (
            *banned(file.read_text()),
            *(each for text in _docstrings(file) for each in long_sentences(text)),
        )
    ]
    assert found == []


def test_what_operators_are_told_is_in_short_sentences() -> None:
    """The tables of events."""
    texts = [text for rows in events().values() for each in rows for text in (each.means, each.do)]
    assert [long for text in texts for long in long_sentences(text)] == []


def banned(text: str) -> Iterator[str]:
    """Return each phrase that a text may not say."""
    yield from (" ".join(found[0].lower().split()) for found in _BANNED.finditer(text))


def long_sentences(text: str) -> Iterator[str]:
    """Return each sentence that is too long, code left out."""
    text = re.sub(r"``?[^`]+``?", "X", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        for sentence in re.split(r"(?<=[.!?:;])\s", paragraph):
            if len(sentence.split()) > LONGEST_SENTENCE:
                yield " ".join(sentence.split())


def _prose(page: str) -> str:
    """Return what is read as text: without code, tables, and addresses of links."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    text = "\n".join(line for line in text.split("\n") if not line.startswith(("|", "<")))
    return re.sub(r"\]\([^)]*\)", "]", text)


def _lines(page: str) -> Iterator[str]:
    """Return the lines whose length is the writer's: no code, tables or links."""
    code = False
    for line in page.split("\n"):
        code ^= line.lstrip().startswith("```")
        if not code and not line.startswith(("|", "<")) and "](" not in line:
            yield line


def _docstrings(file: Path) -> Iterator[str]:
    """Return a module's docstrings, without tables."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, _DEFINED) and (text := ast.get_docstring(node)):
            yield re.sub(r"^\s*\|.*$", "", text, flags=re.MULTILINE)
