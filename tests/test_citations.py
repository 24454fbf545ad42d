"""Citations of docs/design.md and docs/design-log.md in code, tests and docs: each is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DESIGNS = (ROOT / "docs" / "design.md", ROOT / "docs" / "design-log.md")
KINDS = ("*.py", "*.md", "*.proto", "*.sql", "*.lua", "*.pml", "Makefile")
PLACES = (
    "rifl",
    "lease_server",
    "curp",
    "sharedlog",
    "chaos",
    "examples",
    "benchmarks",
    "tests",
    "docs",
)
# A paper's sections are its own; a bare § goes on with the source before it on the line,
# or is of the design.
_CITED = re.compile(r"(?:\b(RIFL|CURP|DESIGN|RFC \d+)\b[^§\n]{0,3})?§(\d+)((?:\.\d+)*)")
_INVARIANTS = re.compile(r"[Ii]nvariants? (\d+(?:(?:, | and |, and )\d+)*)")
# A class may number its own; "Invariants:" stands before them.
_OWN = re.compile(r"Invariants(?: of [^:\n]+)?:\n\n?((?:.*\n)*?)(?=\n\s*\n\s*(?![ \d])|\s*\"\"\")")


# A rule of the log half: its letter is its section's.
_RULE = re.compile(r"(?<![\w.-])([LCTP][1-9]\d?)(?![\w-]|\.\w)")


def rules() -> list[str]:
    """The lettered rules of the log half, as they stand there: L1, L2, ..."""
    return re.findall(r"^- \*\*([A-Z]\d+)\b", DESIGNS[1].read_text(), re.MULTILINE)


def sections() -> dict[int, set[int]]:
    """Each section of the design, with the numbers of what is numbered in it."""
    found: dict[int, set[int]] = {}
    for line in "\n".join(each.read_text() for each in DESIGNS).splitlines():
        if heading := re.match(r"## (\d+)\. ", line):
            current = found.setdefault(int(heading[1]), set())
        elif item := re.match(r"(\d+)\. ", line):
            current.add(int(item[1]))
    return found


def _files() -> Iterator[Path]:
    for place in PLACES:
        for kind in KINDS:
            yield from (ROOT / place).rglob(kind)
    yield from (ROOT / "proto").rglob("*.proto")
    yield ROOT / "README.md"
    yield ROOT / "Makefile"


def citations(line: str) -> Iterator[tuple[int, int | None]]:
    """Which sections of the design a line cites, each with its number if it has one."""
    source, end = "DESIGN", -100
    for found in _CITED.finditer(line):
        if found[1]:
            source = found[1]
        elif not re.fullmatch(r"(, | and |, and | to |; )", line[end : found.start()]):
            source = "DESIGN"
        end = found.end()
        if source == "DESIGN":
            numbers = [int(part) for part in found[3].split(".") if part]
            assert len(numbers) < 2, f"no section is that deep: {found[0]}"
            yield int(found[2]), numbers[0] if numbers else None


def test_every_section_that_is_cited_exists() -> None:
    """Each `DESIGN §4.2` names a section, and a number in it where it gives one (DESIGN §9)."""
    there = sections()
    cited = [
        (f"{file.relative_to(ROOT)}:{at}", section, number)
        for file in _files()
        for at, line in enumerate(file.read_text().splitlines(), start=1)
        for section, number in citations(line)
    ]
    assert len(cited) > 500
    assert [
        f"{where}: §{section}" + (f".{number}" if number else "")
        for where, section, number in cited
        if section not in there or (number is not None and number not in there[section])
    ] == []


def test_every_invariant_that_is_cited_exists() -> None:
    """Each "invariant 5" is one of the design's, or of a list in the module's own (DESIGN §7)."""
    of_groups = sections()[7]
    wrong = []
    for file in (file for file in _files() if file.suffix == ".py"):
        text = file.read_text()
        own = {int(n) for listed in _OWN.findall(text) for n in re.findall(r"(\d+)\. ", listed)}
        for found in _INVARIANTS.finditer(text):
            numbers = {int(number) for number in re.findall(r"\d+", found[1])}
            if numbers - of_groups - own:
                wrong.append(f"{file.relative_to(ROOT)}: {found[0]}")
    assert wrong == []


def test_every_rule_of_the_log_half_that_is_cited_exists() -> None:
    """Each "T6" is a rule of docs/design-log.md, which has each once (DESIGN §9)."""
    there = rules()
    assert len(there) == len(set(there))
    assert {rule[0] for rule in there} == set("LCTP")
    cited = [
        (f"{file.relative_to(ROOT)}:{at}", rule)
        for file in _files()
        for at, line in enumerate(file.read_text().splitlines(), start=1)
        for rule in _RULE.findall(line)
    ]
    assert len(cited) > 500
    assert [(where, rule) for where, rule in cited if rule not in there] == []


@pytest.mark.parametrize(
    ("line", "cited"),
    [
        ("(DESIGN-LOG §12, L3; §13, C2)", ["L3", "C2"]),
        ("as T1 says, and P9.", ["T1", "P9"]),
        ("(L1-L8)", []),
        ("by XP1, P1x or tests/C4.py", []),
    ],
)
def test_a_rule_of_the_log_half_is_read_as_one(line: str, cited: list[str]) -> None:
    """A letter and a number by themselves are a rule, and nothing else is (DESIGN §9)."""
    assert _RULE.findall(line) == cited


@pytest.mark.parametrize(
    ("line", "cited"),
    [
        ("(RIFL §3.3; DESIGN §5)", [(5, None)]),
        ("(RIFL §3.2 and §3.3; DESIGN §3, §4.2)", [(3, None), (4, 2)]),
        ("(§6, group commit)", [(6, None)]),
        ("CURP §3.2.1 says; DESIGN §7.10", [(7, 10)]),
    ],
)
def test_a_citation_is_read_with_its_source(line: str, cited: list[tuple[int, int | None]]) -> None:
    """A paper's sections are not taken for the design's (DESIGN §9)."""
    assert list(citations(line)) == cited
