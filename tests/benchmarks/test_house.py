"""The house of imports: its floors without circles, its figures, and the committed picture."""

import dataclasses
import inspect

import rifl
from benchmarks.house.bounds import BOUNDS
from benchmarks.house.figures import _meanings, figures, same_names, small
from benchmarks.house.imports import PRODUCT, ROOT, circles, graph
from benchmarks.house.picture import parts, picture
from benchmarks.house.reference import pages
from benchmarks.house.way import way, way_of_a_message


def test_circles_are_found_and_chains_are_not():
    """A circle is what reaches itself; what only hangs on it does not belong (DESIGN §2)."""
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"a"}}
    assert circles(arrows) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_packages_import_each_other_in_no_circle():
    """The packages stand on floors (DESIGN §2)."""
    arrows = parts()
    assert circles(arrows) == []
    assert {"rifl._client", "rifl._server", "rifl.core._serving", "curp._replica"} <= set(arrows)


def test_modules_import_each_other_in_no_circle():
    """What two modules need of each other is a third one, or one of them (DESIGN §2)."""
    assert circles(graph(*PRODUCT, "chaos", "benchmarks", "examples")) == []


def test_the_picture_is_that_of_the_imports():
    """``make house`` was run after the last change of who imports whom (DESIGN §2)."""
    assert (ROOT / "docs" / "house.svg").read_text() == picture()


def test_the_reference_is_that_of_the_code():
    """``make reference`` was run after the last change of a docstring or an option."""
    folder = ROOT / "docs" / "reference" / "api"
    assert {file.name: file.read_text() for file in folder.glob("*.md")} == pages()


def test_every_bound_is_in_its_table():
    """With what sets it and its default: one that is new in the code is missed (DESIGN §9)."""
    named = {of: set(rows) for of, (_, rows) in BOUNDS.items()}
    for made, rows in BOUNDS.values():
        assert set(rows) <= inspect.signature(made).parameters.keys()

    def settings(kind):
        return {each.name for each in dataclasses.fields(kind)}

    assert named["rifl.Bounds"] == settings(rifl.Bounds)
    most = {name for name in settings(rifl.MethodPolicy) if name.startswith("max_")}
    assert most <= named["rifl.MethodPolicy"]
    pauses = {"initial_backoff_s", "multiplier"}
    assert named["rifl.RetryPolicy"] == settings(rifl.RetryPolicy) - pauses


def test_figures_are_of_this_tree():
    """The figures count what is there."""
    found = dict(figures())
    count, lines = found["files / lines of the product"].replace(",", "").split(" / ")
    assert int(count) > 100
    assert int(lines) > 10_000
    assert int(found["private modules"]) < int(count)
    assert "rifl._server.sync" not in {name for name, _, _ in small()}
    assert same_names() == {}


def test_a_name_of_both_flavours_has_one_meaning():
    """A class of another package with the same name has another one."""
    assert len(_meanings(["sharedlog._log.producer", "sharedlog._aio.producer"])) == 1
    assert len(_meanings(["rifl.core._shared.observer", "sharedlog._core.observer"])) == 2


def test_the_way_of_one_call_goes_through_both_sides():
    """From the client's channel to the rules that serve it, and back."""
    first, *files = way()
    counted = {line.split()[1]: int(line.split()[0]) for line in files}
    assert first == f"one unary call: {len(counted)} files, {sum(counted.values())} frames"
    for part in ("rifl/_client/", "rifl/core/_calling/", "rifl/_server/", "rifl/core/_serving/"):
        assert any(name.startswith(part) for name in counted)


def test_the_way_of_a_message_goes_through_the_log_and_a_consumer():
    """From ``publish`` to the function, and back into the log."""
    first, *files = way_of_a_message()
    assert first.startswith(f"one message, through a consumer's function: {len(files)} files, ")
    for part in ("sharedlog/_log/publisher.py", "sharedlog/_core/consumer/shard.py"):
        assert any(line.split()[1] == part for line in files)
