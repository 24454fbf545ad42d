"""Public names of packages, each imported with its part when it is first asked for.

Spark starts a process for each task slot, which needs few parts of a package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exported(
    package: str, homes: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__all__``, ``__getattr__`` and ``__dir__``.

    ``homes``: for each module the names that it gives, with blanks between them. A module without
    names is given itself. Type checkers and editors read the package's imports beside this
    (``if TYPE_CHECKING``), as ``name as name``, by which they know that a name is public.
    """
    places = {name: home for home, names in homes.items() for name in names.split()}
    modules = {home.rpartition(".")[2]: home for home, names in homes.items() if not names}
    public = sorted({*places, *modules})

    def find(name: str) -> Any:
        if name in places:
            found = getattr(import_module(places[name]), name)
        elif name in modules:
            found = import_module(modules[name])
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Where the next use finds it.
        setattr(sys.modules[package], name, found)
        return found

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public})

    return public, find, listed
