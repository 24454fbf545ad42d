"""How a method is declared, and what that promises (DESIGN §1, §4)."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Kind", "MethodPolicies", "MethodPolicy"]

_DEFAULT_MAX_RESPONSE_BYTES = 4 << 20
_LAST_CODE = 16


class Kind(enum.Enum):
    """What becomes durable when, and so what a server crash may cost a call."""

    PLAIN = "plain"
    IDEMPOTENT = "idempotent"
    ATOMIC = "atomic"


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodPolicy:
    """How calls of one method are deduplicated.

    ``kind``: ``"plain"`` (a durable intent before the handler, so that a crash
    in between is a lasting unknown outcome), ``"idempotent"`` (no intent; a call
    caught by a crash runs again) or ``"atomic"`` (no intent; the handler commits
    its record with ``rifl.record``).
    ``required``: refuse calls without an identity instead of passing them through.
    ``unrecorded``: numbers of the gRPC codes by which the handler says that
    nothing happened; such an answer is not kept and a retry runs again.
    ``max_response_bytes``: longer answers are replaced by RESPONSE_TOO_LARGE.
    ``database``: for atomic methods, the URL of the database whose transactions
    the records go into; None means the store's own.
    """

    kind: Kind = Kind.PLAIN
    required: bool = False
    unrecorded: frozenset[int] = frozenset()
    max_response_bytes: int = _DEFAULT_MAX_RESPONSE_BYTES
    database: str | None = None

    def __post_init__(self) -> None:
        # A word that is not made a Kind would be no kind at all: no intent, no fence.
        object.__setattr__(self, "kind", Kind(self.kind))
        object.__setattr__(self, "unrecorded", frozenset(self.unrecorded))
        if not all(type(code) is int and 0 <= code <= _LAST_CODE for code in self.unrecorded):
            raise ValueError("unrecorded holds numbers of gRPC codes, such as 14 for UNAVAILABLE")
        if self.database is not None and self.kind is not Kind.ATOMIC:
            raise ValueError("only an atomic method names a database")
        if 0 in self.unrecorded:
            raise ValueError("OK cannot mean that nothing happened")
        if self.max_response_bytes < 1:
            raise ValueError("max_response_bytes must be at least 1")

    @classmethod
    def of(cls, declared: MethodPolicy | Kind | str | None) -> MethodPolicy | None:
        """Return the policy that a declaration stands for; raises ``ValueError``."""
        if declared is None or isinstance(declared, MethodPolicy):
            return declared
        return cls(kind=Kind(declared))


class MethodPolicies:
    """The policy of every method, by the most specific pattern that fits.

    Patterns: ``/package.Service/Method``, ``/package.Service/*`` and ``*``. A
    declaration of None excludes methods. Immutable; safe in any thread.
    """

    def __init__(
        self,
        methods: Mapping[str, MethodPolicy | Kind | str | None],
        default: MethodPolicy | Kind | str | None,
    ) -> None:
        self._patterns = {"*": MethodPolicy.of(default)}
        for pattern, declared in methods.items():
            if pattern != "*" and not (pattern.startswith("/") and pattern.count("/") == 2):
                raise ValueError(f"{pattern!r} is not /package.Service/Method, /…/* or *")
            self._patterns[pattern] = MethodPolicy.of(declared)

    def __iter__(self) -> Iterator[MethodPolicy]:
        return (policy for policy in self._patterns.values() if policy is not None)

    def find(self, method: str) -> MethodPolicy | None:
        """Return the policy of a full method name, None where it has none."""
        patterns = self._patterns
        if method in patterns:
            return patterns[method]
        service = method[: method.rfind("/") + 1] + "*"
        return patterns[service] if service in patterns else patterns["*"]

    def deduplicated(self) -> list[str]:
        """Return the patterns that have a policy."""
        return [pattern for pattern, policy in self._patterns.items() if policy is not None]

    def not_deduplicated(self) -> list[str]:
        """Return the patterns that have none, ``*`` left out."""
        return [
            pattern
            for pattern, policy in self._patterns.items()
            if policy is None and pattern != "*"
        ]
