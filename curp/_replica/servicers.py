"""Servicers that can be made anew: a replica that was deposed begins over."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from curp._replica.settings import StateHooks


class Servicers:
    """The servicers of a replica that were given by how they are made.

    If each has ``snapshot() -> bytes`` and ``restore(bytes)``, snapshots are made of
    them; else there are none.
    """

    def __init__(self) -> None:
        self._made: list[_Made] = []

    def add(self, factory: Callable[[], Any]) -> Any:
        """Return what stands for the servicer, whichever one is current."""
        made = _Made(factory)
        self._made.append(made)
        return made

    def hooks(self, given: StateHooks) -> StateHooks:
        """Return the hooks of the user, completed by what the servicers can do."""
        if not self._made:
            return given

        def reset() -> None:
            if given.reset is not None:
                given.reset()
            for made in self._made:
                made.renew()

        able = all(made.can_be_kept() for made in self._made)
        if given.snapshot is not None or not able:
            return StateHooks(reset=reset, snapshot=given.snapshot, restore=given.restore)
        return StateHooks(reset=reset, snapshot=self._snapshot, restore=self._restore)

    def _snapshot(self) -> bytes:
        parts: list[bytes] = [made.current.snapshot() for made in self._made]
        return b"".join(len(part).to_bytes(8, "big") + part for part in parts)

    def _restore(self, data: bytes) -> None:
        at = 0
        for made in self._made:
            length = int.from_bytes(data[at : at + 8], "big")
            made.current.restore(data[at + 8 : at + 8 + length])
            at += 8 + length


class _Made:
    """Passes every method on to the servicer of the moment."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self.current = factory()

    def renew(self) -> None:
        self.current = self._factory()

    def can_be_kept(self) -> bool:
        return hasattr(self.current, "snapshot") and hasattr(self.current, "restore")

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.current, name)
        if not callable(method):
            return method
        if inspect.iscoroutinefunction(method):

            async def call_async(request: Any, context: Any) -> Any:
                return await getattr(self.current, name)(request, context)

            return call_async

        def call(request: Any, context: Any) -> Any:
            return getattr(self.current, name)(request, context)

        return call
