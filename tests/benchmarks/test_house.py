"""What reads the house from its files, and the picture that is committed."""

from benchmarks.house.figures import figures
from benchmarks.house.imports import ROOT, circles
from benchmarks.house.picture import parts, picture


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


def test_the_picture_is_that_of_the_imports():
    """``make picture`` was run after the last change of who imports whom (DESIGN §2)."""
    assert (ROOT / "docs" / "house.svg").read_text() == picture()


def test_figures_are_of_this_tree():
    """The figures count what is there."""
    found = dict(figures())
    count, lines = found["files / lines of the product"].replace(",", "").split(" / ")
    assert int(count) > 100
    assert int(lines) > 10_000
    assert int(found["private modules"]) < int(count)
