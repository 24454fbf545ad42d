"""The cost of a fork to the child, beside what it refuses there (DESIGN §5)."""

import inspect
import weakref

from _rifl_ground import forks as _forks


class _Made:
    def called(self):
        """Refused in a child."""


def test_a_child_looks_at_each_class_once(monkeypatch):
    """Its parent may have made thousands of one: a child that took minutes would be hung."""
    looks = []
    found = inspect.getmembers_static
    monkeypatch.setattr(
        inspect, "getmembers_static", lambda *given: (looks.append(given), found(*given))[1]
    )
    # What a child does first, of nobody else's objects.
    monkeypatch.setattr(_forks, "_made", weakref.WeakKeyDictionary())
    kept = [_Made() for _ in range(100)]
    for each in kept:
        _forks.refuse_in_children(each, lambda: RuntimeError("the parent's"))
    _forks._tell()
    assert all("called" in vars(each) for each in kept)
    assert len(looks) == 1
