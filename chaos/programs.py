"""Programs that the machine has, and pip does not bring."""

from __future__ import annotations

import shutil

__all__ = ["NotInstalled", "program"]


class NotInstalled(RuntimeError):
    """A program is missing; the text says what installs it."""


def program(name: str, path: str = "", *, target: str) -> str:
    """Find a program on the PATH, else in ``path``, as ``make TARGET`` leaves it there.

    Raises ``NotInstalled``.
    """
    found = shutil.which(name) or (shutil.which(name, path=path) if path else None)
    if found is None:
        raise NotInstalled(f"there is no {name} on the PATH: make {target} installs it")
    return found
