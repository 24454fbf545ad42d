"""Lua scripts, from files beside the code that calls them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources.abc import Traversable
from typing import Any

import redis


class Script:
    """A script's text, made of files of a directory, and the name Redis keeps it under.

    ``writes``: it may write; others may be asked again when a reply is lost. ``opens``: it is
    the first that is asked of a log. ``counts``: the first words of replies that count only once
    the replicas have what was written, where any were asked for.
    """

    __slots__ = ("counts", "opens", "sha", "sha_bytes", "text", "writes")

    def __init__(
        self,
        directory: Traversable,
        names: Sequence[str],
        *,
        writes: bool = True,
        opens: bool = False,
        counts: Sequence[bytes] = (b"ok",),
    ) -> None:
        self.text = "\n".join((directory / f"{name}.lua").read_text("utf-8") for name in names)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        # As it travels.
        self.sha_bytes = self.sha.encode()
        self.writes = writes
        self.opens = opens
        self.counts = frozenset(counts)

    def run(self, client: Any, parts: Sequence[Any]) -> Any:
        """Run it, also on a server that does not have it yet; ``parts``: what follows its name."""
        try:
            return client.evalsha(self.sha, *parts)
        except redis.exceptions.NoScriptError:
            return client.eval(self.text, *parts)
