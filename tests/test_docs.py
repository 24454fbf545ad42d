"""The docs name what there is."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import re
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import curp
import rifl
from _rifl_ground.exits import EXIT_CODES, ExitCode
from benchmarks.house.imports import PRODUCT, files, nodes_of
from benchmarks.house.operating import ERRORS, LOOK, REFUSALS, URGENCY, events, symptoms
from benchmarks.house.prose import paragraphs
from benchmarks.house.reference import COMMANDS
from rifl._stores.mysql import MySqlStoreAddress
from rifl._stores.postgres import PostgresStoreAddress
from rifl._stores.redis import RedisStoreAddress
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared import errors
from rifl.core._shared.errors import RiflError
from rifl.spark._call import call
from rifl.testing import Fault
from rifl.v1 import options_pb2
from sharedlog._engines.etcd import address as etcd_address
from tests.helpers.events import events_in_the_source, events_in_the_tables
from tests.helpers.pages import DOCS, FRONT_PAGES, GENERATED, PAGES, page

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("error", [*REFUSALS, *chain(*ERRORS.values())])
def test_every_error_says_what_to_do(error: type[Exception]) -> None:
    """A docstring says what happened, and in its last paragraph what to do (DESIGN §3)."""
    happened, *_, do = paragraphs(error)
    assert happened.endswith(".")
    assert do.endswith(".")


def test_every_reason_is_explained() -> None:
    """The table has each class of ``rifl.core`` (DESIGN §3)."""
    assert {cls for cls in vars(errors).values() if _is_refusal(cls)} <= set(REFUSALS)


def _is_refusal(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, RiflError) and cls is not RiflError


@pytest.mark.parametrize("package", ["rifl", "sharedlog", "curp"])
def test_every_exit_code_is_explained(package: str) -> None:
    """The table has the exit codes of a package's commands, those that their modules name."""
    text = "".join(file.read_text() for file in files(f"{package}/_cli"))
    named = {ExitCode[name] for name in re.findall(r"ExitCode\.([A-Z_]+)", text)}
    if package == "curp":  # Of ``log copy``: 128 and the signal.
        named |= {ExitCode.INTERRUPTED, ExitCode.TERMINATED}
    told = {code for name, of in EXIT_CODES.items() if name.split()[0] == package for code in of}
    assert told == named | {ExitCode.DONE, ExitCode.UNAVAILABLE, ExitCode.USAGE}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("stores-redis.md", RedisStoreAddress.OPTIONS),
        ("stores-postgresql.md", PostgresStoreAddress.OPTIONS),
        ("stores-mysql.md", MySqlStoreAddress.OPTIONS),
        ("curp-logs.md", etcd_address._OPTIONS),
    ],
)
def test_every_option_of_a_url_is_listed(name: str, options: dict[str, object]) -> None:
    """A store's page has what each option of its URL costs."""
    cells = re.findall(r"^\| (`[a-z_`, ]+`) \|", page(name).read_text(), re.MULTILINE)
    rows = {one for cell in cells for one in re.findall(r"[a-z_]+", cell)}
    assert set(options) <= set(rows)


def test_every_field_of_a_policy_is_listed() -> None:
    """policies.md has each option beside the policy's field."""
    text = page("policies.md").read_text()
    names = {field.name for field in dataclasses.fields(MethodPolicy)}
    names |= set(options_pb2.ExactlyOnce.DESCRIPTOR.fields_by_name)
    assert [name for name in sorted(names) if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize(
    "called",
    [
        rifl.Deduplicator,
        rifl.connect,
        rifl.RetryPolicy,
        rifl.serve_until_signal,
        curp.Replica,
        call,
    ],
    ids=lambda called: called.__name__,
)
def test_every_argument_is_explained(called: Callable[..., Any]) -> None:
    """What can be set has a word on some page."""
    text = "".join(each.read_text() for each in (README, *PAGES))
    names = list(inspect.signature(called).parameters)
    assert names
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("opened", [README, *PAGES], ids=lambda each: each.name)
def test_commands_are_there(opened: Path) -> None:
    """Each make target, module and scenario that a page has readers run exists."""
    text = opened.read_text()
    code = re.findall(r"^```\w*\n.*?^```|`[^`\n]+`", text, re.MULTILINE | re.DOTALL)
    targets = {one for each in code for one in re.findall(r"(?:^|`)make ([a-z-]+)", each, re.M)}
    makefile = (README.parent / "Makefile").read_text()
    assert [one for one in targets if not re.search(rf"^{one}:", makefile, re.MULTILINE)] == []
    modules = set(re.findall(r"python -m ([a-z_.]*[a-z_])", text))
    assert [one for one in modules if importlib.util.find_spec(one) is None] == []
    scenarios = set(re.findall(r"python -m chaos\.run ([a-z][a-z-]+)(?![.a-z-])", text))
    known = {path.stem for path in (README.parent / "chaos/run/scenarios").iterdir()}
    assert scenarios <= known


def test_every_fault_is_listed() -> None:
    """testing.md has each fault of the kit."""
    rows = re.findall(r"^\| `([A-Z_]+)` \|", page("testing.md").read_text(), re.MULTILINE)
    assert rows == [fault.name for fault in Fault]


def test_every_page_and_example_is_linked() -> None:
    """README leads to the front pages and the index, the index to each page (DESIGN §2)."""
    text = README.read_text()
    index = DOCS / "README.md"
    assert [p.name for p in (*FRONT_PAGES, index) if f"(docs/{p.name})" not in text] == []
    links = re.findall(r"\]\(([^)#]+)", index.read_text())
    reached = {index, *((DOCS / each).resolve() for each in links)}
    assert [each.name for each in PAGES if each not in reached] == []
    assert (DOCS / "reference/api/README.md") in reached
    examples = {
        path.stem
        for path in (README.parent / "examples").glob("*.py")
        if 'if __name__ == "__main__":' in path.read_text()
    }
    listed = page("examples.md").read_text()
    assert [name for name in sorted(examples) if f"`examples/{name}.py`" not in listed] == []


@pytest.mark.parametrize("opened", [README, *PAGES, *GENERATED], ids=lambda each: each.name)
def test_links_lead_somewhere(opened: Path) -> None:
    """Each relative link names a file that is there, and a heading in it."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)", opened.read_text()):
        linked = opened.parent / target if target else opened
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings]
            assert anchor in anchors, f"{target}#{anchor}"


@pytest.mark.parametrize("opened", PAGES, ids=lambda each: each.name)
def test_links_stay_on_the_site(opened: Path) -> None:
    """A page leads to pages: the site, which has them alone, checks no other link."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", opened.read_text())
    assert [to for to in targets if DOCS not in (opened.parent / to).resolve().parents] == []


def test_the_tour_names_what_is_there() -> None:
    """Each file that developing.md sends a reader to exists (DESIGN §2)."""
    text = page("developing.md").read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.[a-z]+)?)`", text))
    assert len(named) > 40
    assert {name for name in named if not (README.parent / name).exists()} == set()


def test_the_methods_that_the_tour_names_are_there() -> None:
    """Each `Class.method` of developing.md is a method of such a class (DESIGN §2)."""
    text = page("developing.md").read_text()
    named = set(re.findall(r"`([A-Z]\w*[a-z]\w*\.[a-z_]\w+)`", text))
    there = {
        f"{node.name}.{each.name}"
        for file in files(*PRODUCT, "chaos")
        for node in nodes_of(file)
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(named) > 20
    assert named - there == set()


def test_every_event_is_in_a_table() -> None:
    """The tables have each event that is logged, and none that is not (DESIGN §9)."""
    logged, handed = events_in_the_source()
    known = {each.name for each in events_in_the_tables()}
    names = {each.name for each in logged} | handed
    assert len(names) > 100
    assert (sorted(names - known), sorted(known - names)) == ([], []), "_events.py"


def test_an_event_has_one_row() -> None:
    """One name, one meaning: no event stands in two tables, or twice in one (DESIGN §9)."""
    rows = [(each.name, each.level) for each in events_in_the_tables()]
    assert sorted(each for each in rows if rows.count(each) > 1) == []


def test_a_row_says_what_is_logged() -> None:
    """An event's row has its levels and its fields, and stands under its logger (DESIGN §9)."""
    logged, handed = events_in_the_source()
    by_name = defaultdict(list)
    for row in events_in_the_tables():
        by_name[row.name].append(row)
    wrong = []
    for name in sorted({each.name for each in logged} - handed):
        rows, calls = by_name[name], [each for each in logged if each.name == name]
        told = frozenset().union(*(each.fields for each in rows))
        fields = frozenset().union(*(each.fields for each in calls))
        same = told == fields or ("**" in fields and told > fields - {"**"})
        levels = {each.level for each in rows} == {each.level for each in calls}
        if not (same and levels and {each.logger for each in rows} <= {e.logger for e in calls}):
            wrong.append((name, sorted(fields), {each.level for each in calls}))
    assert wrong == []


def test_a_row_says_what_to_do() -> None:
    """Of more than an info: an action, and until when it can wait; of less none (DESIGN §9)."""
    rows = [each for rows in events().values() for each in rows]
    loud = [each for each in rows if each.level not in ("debug", "info")]
    assert [each.name for each in loud if not each.until] == []
    assert [each.name for each in loud if bool(each.do) == (each.until == "no need")] == []
    assert [each.name for each in rows if each not in loud and (each.do or each.until)] == []
    urgent = [each.name for each in rows if "critical" in each.level and each.until == "no need"]
    assert urgent == []


def test_every_error_says_until_when_it_can_wait() -> None:
    """Of servers, stores, logs and groups; the table has no error that is not there (DESIGN §9)."""
    names = [error.__name__ for error in (*REFUSALS, *chain(*ERRORS.values()))]
    assert sorted(URGENCY) == sorted(set(names))
    assert set(URGENCY.values()) == {"now", "today", "no need"}


def test_the_runbook_has_what_an_operator_needs() -> None:
    """Of each symptom what it means and what to do; a command of what is stored (DESIGN §9)."""
    found = symptoms()
    assert {each.until for each in found} == {"now", "today"}
    assert {"store_stopped", "StoreLost", "STORE_MISMATCH", "LogFull"} <= {e.name for e in found}
    assert [each.name for each in found if not (each.means and each.do)] == []
    names = {f"{logger}.{each.name}" for logger, rows in events().items() for each in rows}
    names |= set(URGENCY)
    assert [each for each in LOOK if not any(name.startswith(each) for name in names)] == []
    of_stores = [each for each in found if each.name.startswith(("store_", "log_", "Store"))]
    assert {each.command != "" for each in of_stores if each.until == "now"} == {True}


def test_commands_of_the_runbook_are_there() -> None:
    """Each command that an event or an error sends an operator to exists (DESIGN §9)."""
    told = [each.do for rows in events().values() for each in rows]
    told += [f"`{each}`" for each in LOOK.values()]
    told += [paragraphs(each)[-1] for each in (*REFUSALS, *chain(*ERRORS.values()))]
    named = set(re.findall(r"`(rifl|sharedlog|curp) ([a-z-]+)", " ".join(told)))
    assert len(named) > 8
    assert {(name, word) for name, word in named if f"{name} {word}" not in COMMANDS} == set()
