"""The ends of attempts at a group for which no answer of the leader's can stand."""

from __future__ import annotations

from typing import Any

import grpc

from _rifl_ground.refusals import Outcome
from rifl._grpc.status import rich_status
from rifl._wire.labels import OUTCOME_KEY
from rifl.core._shared.errors import Deposed

_AGAIN_AFTER_S = 0.005


class AttemptError(grpc.RpcError):
    """The end of an attempt, with a status of rifl's. Never reaches the application."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...]) -> None:
        super().__init__(details)
        self._code = code
        self._details = details
        self._trailing = trailing

    def code(self) -> grpc.StatusCode:
        """Return the code."""
        return self._code

    def details(self) -> str:
        """Return the text."""
        return self._details

    def initial_metadata(self) -> tuple[Any, ...]:
        """Return no metadata."""
        return ()

    def trailing_metadata(self) -> tuple[Any, ...]:
        """Return the label and the rich details."""
        return self._trailing

    def debug_error_string(self) -> str:
        """Return the text."""
        return self._details


def lost_answer(why: str) -> AttemptError:
    """Build the end of an attempt whose answer may be lost: the outcome is unknown."""
    status = rich_status(
        grpc.StatusCode[Deposed.code_name], Deposed.reason, why, retry_after_s=_AGAIN_AFTER_S
    )
    trailing = (*status.trailing_metadata, (OUTCOME_KEY, Outcome.UNKNOWN.value))
    return AttemptError(status.code, status.details, trailing)


def unknown_refusal(status: Any) -> AttemptError:
    """Build the same refusal with an unknown outcome (invariant 13)."""
    trailing = tuple(
        (key, Outcome.UNKNOWN.value if key == OUTCOME_KEY else value)
        for key, value in status.trailing_metadata() or ()
    )
    return AttemptError(status.code(), status.details() or "", trailing)
