"""The exceptions of ``rifl.spark``: they pickle, and say in their text what is wrong.

::

    SparkError
     ├─ PlanError         found on the driver, before any row was sent
 │   └─ AlreadyDone     the job under this name is complete
     ├─ RowError          one row: its value, its key, or what the service answered
     │   └─ DeliveryError   the service, or rifl, refused it for good
     └─ IdentityError     a task that does not know which write it belongs to

Spark shows a Python exception by its text, so each says column, key and reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rifl.spark._key_format import show_key

__all__ = [
    "AlreadyDone",
    "DeliveryError",
    "IdentityError",
    "PlanError",
    "RowError",
    "SparkError",
    "already_done",
]

# Spark shows the errors of its own processes by their text alone. A log's sink uses it, too.
DONE = "RIFL_ALREADY_DONE"
_REASONS_OF_ALL_ROWS = {
    "SESSION_CLOSED",
    "LEASE_EXPIRED",
    "NOT_YOURS",
    "NOT_WRAPPED",
    "NOT_DEDUPLICATED",
    "WINDOW_EXCEEDED",
    "STORE_UNAVAILABLE",
    "OVERLOADED",
    "DRAINING",
    "NOT_LEADER",
}
_CODES_OF_ALL_ROWS = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED", "UNIMPLEMENTED"}


class SparkError(Exception):
    """The root."""


class PlanError(SparkError):
    """The write cannot be made as asked. Nothing was sent."""


class AlreadyDone(PlanError):
    """The session was closed when its rows were written: there is nothing left to do.

    ``already_done`` recognises it in what Spark raises, too.
    """

    def __init__(self, session: str) -> None:
        super().__init__(session)
        self.session = session

    def __str__(self) -> str:
        return (
            f"{DONE}: the rows of the session {self.session!r} were written and it was closed; "
            "written again under another name they would have their effect again"
        )


def already_done(error: BaseException) -> bool:
    """Tell whether a write failed only because it was complete before.

    For schedulers that run a finished job again: of ``df.write.format("rifl")``, whose
    errors Spark wraps, of ``rifl.spark.write`` and of ``rifl.spark.call``; and of a job into a log
    whose name has committed other rows (``AlreadyCommitted``).
    """
    return isinstance(error, AlreadyDone) or DONE in str(error)


class IdentityError(SparkError):
    """The query, batch or session cannot be identified for certain."""


class RowError(SparkError):
    """A row that cannot be sent: ``reason`` is a word of rifl's, ``text`` says more.

    ``key`` is the row's identity, empty if it has none.
    """

    def __init__(self, reason: str, text: str, key: bytes = b"") -> None:
        super().__init__(reason, text, key)
        self.reason = reason
        self.text = text
        self.key = key

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}" + (f" (key {show_key(self.key)})" if self.key else "")


class DeliveryError(RowError):
    """A row that was sent and failed for good.

    ``code`` is the name of the gRPC status, ``outcome`` whether the call ran, in
    the wire's word; ``reason`` is rifl's, or ``HANDLER`` where the service itself
    answered with an error, ``TIMEOUT`` if no answer came within ``timeout``, and
    ``TRANSPORT`` for what connections and proxies report.
    """

    def __init__(
        self, reason: str, text: str, key: bytes = b"", code: str = "", outcome: str = ""
    ) -> None:
        super().__init__(reason, text, key)
        self.args = (reason, text, key, code, outcome)
        self.code = code
        self.outcome = outcome

    @property
    def answered(self) -> bool:
        """Whether the service answered this row, now or before."""
        return self.outcome in ("executed", "replayed")

    @property
    def concerns_all_rows(self) -> bool:
        """Whether other rows would end so, too: the session, or the server, is in trouble."""
        # What the service itself answered is that row's, whatever the code.
        return not self.answered and (
            self.reason in _REASONS_OF_ALL_ROWS or self.code in _CODES_OF_ALL_ROWS
        )

    def __str__(self) -> str:
        return f"{self.code} {super().__str__()}, outcome {self.outcome}"


def raise_error_of_all_rows(ends: Iterable[Any]) -> None:
    """Raise the first error that is not one row's own."""
    for end in ends:
        if isinstance(end, DeliveryError) and end.concerns_all_rows:
            raise end
