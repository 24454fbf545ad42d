"""Refusals of what a forked child inherits (DESIGN §5).

A fork copies ids that were reserved once, locks that threads of the parent hold, and
connections that both then write to. So what decides or keeps something belongs to the
process that made it. Nothing is looked at on a call: the child replaces methods.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from _rifl_ground.system import at_forks

_T = TypeVar("_T")

REMEDY = (
    "make it again in the child, after the fork (gunicorn: in post_fork; uwsgi: in a postfork "
    "hook; multiprocessing: in the worker's initializer)"
)


def in_children(made: _T, tell: Callable[[_T], None]) -> None:
    """Have ``tell(made)`` called in every forked child, for as long as ``made`` is held.

    ``tell`` must not hold ``made``, and takes no lock: a thread of the parent may have
    held any lock at the fork, which the child can never get.
    """
    _made[made] = tell


def refuse_in_children(
    made: _T, error: Callable[[], Exception], forget: Callable[[_T], None] | None = None
) -> None:
    """Have every public method of ``made`` raise ``error()`` in a forked child.

    But for ``close`` and ``aclose``, which do nothing there: what they would close is
    the parent's. ``forget``: drops there what special methods would still give out; as ``tell``
    of ``in_children``.
    """

    def refuse(inherited: _T) -> None:
        for name, method in _public_methods(type(inherited)):
            object.__setattr__(inherited, name, _refusing(name, method, error))
        if forget is not None:
            forget(inherited)

    in_children(made, refuse)


def _public_methods(made: type[Any]) -> list[tuple[str, Callable[..., Any]]]:
    # Once for a class: a process may have made any number of them when it forks.
    found = _methods.get(made)
    if found is None:
        members = inspect.getmembers_static(made, inspect.isfunction)
        found = [(name, method) for name, method in members if not name.startswith("_")]
        _methods[made] = found
    return found


_methods: dict[type[Any], list[tuple[str, Callable[..., Any]]]] = {}


def _refusing(
    name: str, method: Callable[..., Any], error: Callable[[], Exception]
) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise error()

    def ignore(*_: Any, **__: Any) -> None:
        pass

    async def ignore_async(*_: Any, **__: Any) -> None:
        pass

    if name not in ("close", "aclose"):
        return refuse
    return ignore_async if inspect.iscoroutinefunction(method) else ignore


class Process:
    """A process: another object in each forked child. As quick to ask for as nothing else is."""

    __slots__ = ()


def this_process() -> Process:
    """Return the process that asks."""
    return _this[0]


_this = [Process()]
_made: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def _tell() -> None:
    _this[0] = Process()
    for made, tell in list(_made.items()):
        tell(made)


at_forks(after_in_child=_tell)
