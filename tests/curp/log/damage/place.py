"""A group's log in a server, and all that was opened over it."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from curp._cli.command import main
from curp.log import open_engine
from tests.curp.log.conformance import Writer
from tests.curp.logs import created

__all__ = ["Place", "verified"]


class Place:
    """A log, created here; ``damage`` is that of its store."""

    def __init__(self, damage: Any, **options: object) -> None:
        self.damage = damage
        self.url = created(damage.url(**options))
        self._opened: list[Any] = []

    def open(self, **options: Any) -> Any:
        """One more engine."""
        self._opened.append(open_engine(self.url, **options))
        return self._opened[-1]

    def fill(self) -> Place:
        """Have it hold a little of everything: ten appends, two of them trimmed."""
        writer = Writer(self.open())
        for lsn in range(1, 11):
            writer.append(b"body %d" % lsn, tags=("t",))
        writer.snapshot(4, b"one", b"two")
        writer.engine.trim(2, configuration=writer.configuration)
        return self

    def close(self) -> None:
        """Close all engines."""
        for engine in self._opened:
            engine.close()


def verified(url: str) -> str:
    """Return what ``curp log verify`` finds wrong with a log, empty if it is whole."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["log", "verify", url])
    assert (code, bool(out.getvalue())) == (int(bool(err.getvalue())), not err.getvalue())
    return err.getvalue()
