"""What the Spark part refuses: plain exceptions that pickle and name what is wrong.

::

    SparkError
     ├─ PlanError         found on the driver, before any row was sent
     ├─ RowError          one row: its value, its key, or what the service answered
     │   └─ DeliveryError   the service, or rifl, refused it for good
     └─ IdentityError     a task that does not know which write it belongs to

Spark shows a Python exception by its text, so each says column, key and reason.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DeliveryError", "IdentityError", "PlanError", "RowError", "SparkError"]


class SparkError(Exception):
    """The root."""


class PlanError(SparkError):
    """The write cannot be made as asked. Nothing was sent."""


class IdentityError(SparkError):
    """Which query, batch or session this is cannot be told for certain."""


class RowError(SparkError):
    """A row that cannot be sent: ``reason`` is a word of ours, ``text`` says more.

    ``key`` is the row's identity, empty where it has none.
    """

    def __init__(self, reason: str, text: str, key: bytes = b"") -> None:
        super().__init__(reason, text, key)
        self.reason = reason
        self.text = text
        self.key = key

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}" + (f" (key {_shown(self.key)})" if self.key else "")


class DeliveryError(RowError):
    """A row that was sent and failed for good.

    ``code`` is the name of the gRPC status, ``outcome`` whether the call ran, in
    the wire's word; ``reason`` is rifl's, or ``HANDLER`` where the service itself
    answered with an error, ``TIMEOUT`` where nobody did within ``timeout``, and
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

    def __str__(self) -> str:
        return f"{self.code} {super().__str__()}, outcome {self.outcome}"


def _shown(key: bytes) -> Any:
    return key.hex()
