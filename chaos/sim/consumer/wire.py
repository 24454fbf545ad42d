"""Model of the world: the wire to a store or a service, where requests are lost, or late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos.sim.consumer.stage import Acting, Stage
from chaos.sim.faults import Fault, Point

__all__ = ["Locked", "Lost", "Wire"]

_LATEST_S = 1.5
# How soon a server looks again whether what is locked still is.
_AGAIN_S = 0.005


class Locked(Exception):
    """What is asked for waits at the server."""


class Lost(Exception):
    """Nothing was answered in time: whether it was done is not known."""


class Wire:
    """To one server, of all processes. ``timeout_s``: how long a process waits for an answer."""

    def __init__(self, cast: Stage, timeout_s: float) -> None:
        self._cast = cast
        self._timeout_s = timeout_s
        self.lossy_until = self.stalled_until = 0.0
        self.loss = 0.0
        # Earlier requests lead nowhere: another server is in its place.
        self._lives = 0

    def heal(self) -> None:
        """Let everything through from now on."""
        self.lossy_until = self.stalled_until = 0.0

    def cut(self) -> None:
        """Have nothing arrive that is on its way."""
        self._lives += 1

    def ask(self, actor: Acting, point: Point, do: Callable[[], Any]) -> Any:
        """Have something done at the other end; what it returned, or raised. Else ``Lost``."""
        cast, strand = self._cast, self._cast.strands.current
        random, process = cast.random.random, strand.process
        with actor.at(point):
            if not strand.dead:
                wake = strand.waker()
                process.after(self._timeout_s, wake, None, Lost())
                delay = 0.0002 + 0.002 * random()
                if not self._lost(point):
                    if self.lossy_until > cast.loop.now and random() < 0.3:
                        delay += _LATEST_S * random()
                    cast.loop.after(delay, self._arrive, self._lives, process, point, do, wake)
                cast.reached(actor, point)
            return strand.park()

    def _lost(self, point: Point) -> bool:
        if self.lossy_until <= self._cast.loop.now or self._cast.random.random() >= self.loss:
            return False
        self._cast.coverage.hit(Fault.STORE_LOSS, point)
        return True

    def _arrive(self, life: int, process: Any, point: Point, do: Any, wake: Any) -> None:
        loop = self._cast.loop
        if life != self._lives:
            return
        if self.stalled_until > loop.now:
            self._cast.coverage.hit(Fault.STORE_STALL, point)
            loop.at(self.stalled_until, None, self._arrive, life, process, point, do, wake)
            return
        found: Any = None
        error: BaseException | None = None
        try:
            found = do()
        except Locked:
            loop.after(_AGAIN_S, self._arrive, life, process, point, do, wake)
            return
        except Exception as raised:  # noqa: BLE001 - who asked gets it
            error = raised
        if not self._lost(point):
            delay = 0.0002 + 0.002 * self._cast.random.random()
            process.after(delay, wake, found, error)
