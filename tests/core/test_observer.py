"""``Observers``: several as one, and none can do harm (DESIGN §9)."""

from __future__ import annotations

from typing import Any

from _rifl_ground.refusals import Outcome
from rifl.core._shared.observer import EndedCall, Observer, Observers, ServedCall

_SERVED = ServedCall("/s/M", None, Outcome.EXECUTED, "", 0, 0.1)
_ENDED = EndedCall("/s/M", None, 1, Outcome.EXECUTED, "", "OK", 0.1)


class Broken(Observer):
    def call_served(self, served: ServedCall) -> None:
        raise RuntimeError("no")

    def call_begins(self, method: str, metadata: Any) -> Any:
        raise RuntimeError("no")


class Noting(Observer):
    def __init__(self, key: str = "x-mine") -> None:
        self.key = key
        self.seen: list[Any] = []

    def call_served(self, served: ServedCall) -> None:
        self.seen.append(served)

    def call_begins(self, method: str, metadata: Any) -> Any:
        return (*metadata, (self.key, "1")), self.key

    def call_ended(self, ended: EndedCall, begun: Any) -> None:
        self.seen.append(begun)


def test_nobody_watching_is_none() -> None:
    """Without an observer there is nothing to call (DESIGN §9, no cost when off)."""
    assert Observers.of(None, lambda method, error: None) is None
    assert Observers.of([], lambda method, error: None) is None


def test_what_an_observer_raises_reaches_nobody_but_the_log() -> None:
    """An observer that raises is told once a method, and the others still hear (DESIGN §9)."""
    told: list[str] = []
    noting = Noting()
    observers = Observers.of([Broken(), noting], lambda method, error: told.append(method))
    assert observers is not None
    observers.call_served(_SERVED)
    observers.call_served(_SERVED)
    metadata, begun = observers.call_begins("/s/M", None)
    observers.call_ended(_ENDED, begun)
    assert told == ["call_served", "call_begins"]
    assert noting.seen == [_SERVED, _SERVED, "x-mine"]
    assert metadata == (("x-mine", "1"),)


def test_each_observer_gets_back_its_own() -> None:
    """``call_ended`` gives every observer what its own ``call_begins`` returned (DESIGN §9)."""
    one, two = Noting("x-one"), Noting("x-two")
    observers = Observers.of((one, two), lambda method, error: None)
    assert observers is not None
    metadata, begun = observers.call_begins("/s/M", (("a", "b"),))
    observers.call_ended(_ENDED, begun)
    assert (one.seen, two.seen) == (["x-one"], ["x-two"])
    assert metadata == (("a", "b"), ("x-one", "1"), ("x-two", "1"))
