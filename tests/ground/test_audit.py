"""Operators' acts are told once each, with their outcomes (DESIGN §9)."""

from __future__ import annotations

import getpass
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import structlog

from _rifl_ground.audit import acting, this_user
from _rifl_ground.refusals import Denied, NotLeader, NotYours, StoreMismatch, StoreUnavailable
from sharedlog._core.errors import InvalidRequest, LogUnavailable, NotAllowed


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "done"),
        (NotYours("no"), "refused"),
        (NotAllowed("no", Denied("right", "admin")), "refused"),
        (NotLeader("elsewhere"), "failed"),
        (InvalidRequest("what?"), "failed"),
        (StoreMismatch("which?"), "unknown"),
        (StoreUnavailable("silence"), "unknown"),
        (LogUnavailable("silence"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
    ],
)
def test_an_act_is_told_when_it_has_ended(error: Any, outcome: str) -> None:
    """And what it ended with goes on (DESIGN §9)."""
    ends: Any = nullcontext() if error is None else pytest.raises(type(error))
    with structlog.testing.capture_logs() as told, ends, acting("trim", "log", "ops"):
        assert told == []
        if error is not None:
            raise error
    (act,) = told
    assert (act["caller"], act["verb"], act["object"]) == ("ops", "trim", "log")
    assert act["outcome"] == outcome
    assert bool(act["error"]) is (error is not None)


def test_a_long_object_is_cut() -> None:
    """A caller chose it."""
    with structlog.testing.capture_logs() as told, acting("trim", "x" * 5000):
        pass
    assert len(told[0]["object"]) == 1000
    assert told[0]["caller"] == this_user()


def test_a_user_without_a_name_acts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container."""

    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert this_user().startswith("unknown@")


def test_why_a_caller_was_refused_is_kept_with_the_error() -> None:
    """Also in another process."""
    denied = Denied("session_secret", "missing")
    for error in (NotYours("no", denied), NotAllowed("no", denied)):
        found = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        assert (found.denied, str(found)) == (denied, "no")
    assert NotYours("no").denied == ("client_token", "wrong")
