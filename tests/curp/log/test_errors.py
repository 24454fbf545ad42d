"""The tree of log errors."""

from __future__ import annotations

import pickle

import pytest

from curp.log import _errors as errors

CLASSES = [found for name in errors.__all__ if isinstance(found := getattr(errors, name), type)]
EXTRA = {
    errors.TailMismatch: ("tail", 7),
    errors.LeaseHeld: ("remaining_s", 1.5),
    errors.TrimmedLog: ("first", 3),
}


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_pickle_and_print_their_message_only(cls):
    """Each class survives pickling with its message and what else it tells (DESIGN §3)."""
    name, value = EXTRA.get(cls, ("args", ("why ü",)))
    error = cls("why ü", value) if cls in EXTRA else cls("why ü")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copied = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own
        assert type(copied) is cls
        assert str(copied) == "why ü"
        assert getattr(copied, name) == value


def test_one_branch_leaves_open_whether_a_write_happened():
    """Only LogUnavailable and its kind (GroupLog's contract)."""
    unsure = {cls.__name__ for cls in CLASSES if issubclass(cls, errors.LogUnavailable)}
    assert unsure == {"LogUnavailable", "LogFull", "LogStopped"}
