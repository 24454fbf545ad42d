"""Policies: how methods are declared, and what each kind promises (DESIGN §1, §4)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from _rifl_ground.numbers import check_counts
from rifl.core._serving.sendable import MAX_METADATA_BYTES
from rifl.core._shared.codes import CODE_NUMBERS

_DEFAULT_MAX_RESPONSE_BYTES = 4 << 20
_DEFAULT_BUFFER_BYTES = 1 << 20
# For each place of ``max_running``: half a second's calls, if each runs for 16 ms.
_WAITING_EACH = 32


class PolicyError(ValueError):
    """A declaration of a method cannot be honoured. Raised at start, never for a call.

    Correct the declaration that the message names: docs/reference/policies.md.
    """


class Kind(enum.Enum):
    """The order of writes of a method, and so what a server crash may cost a call."""

    PLAIN = "plain"
    IDEMPOTENT = "idempotent"
    ATOMIC = "atomic"


if TYPE_CHECKING:

    class _KindField:
        """For type checkers: a kind, or its word, is given, and a kind is read."""

        def __get__(self, instance: object, owner: object = None) -> Kind: ...

        def __set__(
            self, instance: object, value: Kind | Literal["plain", "idempotent", "atomic"]
        ) -> None: ...

    class _CodesField:
        """The same: numbers, names or ``grpc.StatusCode`` are given, and numbers read."""

        def __get__(self, instance: object, owner: object = None) -> frozenset[int]: ...

        def __set__(self, instance: object, value: Iterable[int | str | enum.Enum]) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodPolicy:
    """How calls of one method are deduplicated.

    ``kind``: ``"plain"`` (a durable intent before the handler; after a crash in
    between, the outcome stays unknown), ``"idempotent"`` (no intent; a call
    whose outcome a crash lost runs again) or ``"atomic"`` (no intent; the handler
    commits its record with ``rifl.record``).
    ``required``: refuse calls without an identity instead of passing them through.
    ``unrecorded``: the gRPC codes (numbers, names or ``grpc.StatusCode``) by which
    the handler says that nothing happened; such an answer is not kept and a retry
    runs again.
    ``max_response_bytes``: longer answers are replaced by RESPONSE_TOO_LARGE; so much of a
    response stream is recorded.
    ``max_metadata_bytes``: an answer whose initial metadata, or trailing metadata and details,
    are larger is replaced in the same way; longer details are cut. gRPC's clients accept 8 KiB
    unless they set ``grpc.max_metadata_size``.
    ``database``: for atomic methods, the URL of the database whose transactions
    get the records; None means the store's own.
    ``retention_s``: how long the records of keyed calls are kept after completion
    (those of a named session stay as long as it does); None means the
    deduplicator's ``key_retention_s``. A retry after that runs again.
    ``key_field``: the field of the request (dotted for a nested one) that is the
    key of a call without an identity of its own.
    ``buffer_bytes``: a request stream of at most this size is read before its
    handler starts; a longer one is handed over while it arrives.
    ``batch_concurrency``: how many coroutine handlers of one batched call run at once;
    with 1 they run one after another, in the batch's order, as plain functions always do.
    ``claim``: ``"always"`` claims every attempt of an atomic method before its handler runs.
    None lets a first attempt run before that, if the store can, so that the store is asked
    once; a lost race then costs a run that is rolled back. ``"never"``, of an idempotent
    method, lets first attempts run so, too, and rolls nothing back: a late duplicate may have
    its effect after that of a later call, and a refused call may have run.
    ``max_running``: how many handlers of unary calls run at once in this process, those of all
    methods of this policy *object* together; a batch counts as one. Others wait for a place, at
    most ``max_waiting`` of them (None: 32 for each place); beyond, calls are OVERLOADED. A
    player's deliveries do not count. On a sync server each that waits holds a thread: the pool
    has to have more than ``max_running``.
    ``cancel_unheard``: cancel a coroutine handler of an atomic or idempotent unary call, which may
    run again, if no caller waits for its answer and the call's time has passed, or its caller
    cancelled it. What it has committed stands, and once it commits it is not cancelled.
    ``max_unheard``: how many coroutine handlers of a method that are not cancelled may run for no
    caller; beyond, new calls are OVERLOADED. None: while as many of its calls come too late as do
    not, as many of its coroutine handlers run as end within three quarters of a new call's time.
    """

    # What is given may be of more types than what is read; at run time both are plain fields.
    if TYPE_CHECKING:
        kind: _KindField = _KindField()
        unrecorded: _CodesField = _CodesField()
    else:
        kind: Kind = Kind.PLAIN
        unrecorded: frozenset[int] = frozenset()
    required: bool = False
    max_response_bytes: int = _DEFAULT_MAX_RESPONSE_BYTES
    database: str | None = None
    retention_s: float | None = None
    key_field: str | None = None
    buffer_bytes: int = _DEFAULT_BUFFER_BYTES
    batch_concurrency: int = 1
    max_metadata_bytes: int = MAX_METADATA_BYTES
    claim: Literal["always", "never"] | None = None
    max_running: int | None = None
    max_waiting: int | None = None
    cancel_unheard: bool = True
    max_unheard: int | None = None

    def __post_init__(self) -> None:
        # A word that is not made a Kind would be no kind at all: no intent, no fence.
        object.__setattr__(self, "kind", _kind(self.kind))
        object.__setattr__(self, "unrecorded", frozenset(_numbers(self.unrecorded)))
        if self.database is not None and self.kind is not Kind.ATOMIC:
            raise PolicyError("only an atomic method names a database")
        if self.claim not in (None, "always", "never"):
            raise PolicyError(f"{self.claim!r} is no value of claim: always, never, or None")
        if self.claim == "never" and self.kind is not Kind.IDEMPOTENT:
            raise PolicyError("only calls of an idempotent method need no claim")
        if 0 in self.unrecorded:
            raise PolicyError("OK cannot mean that nothing happened")
        check_counts(
            self,
            1,
            "max_response_bytes",
            "max_metadata_bytes",
            "batch_concurrency",
            "max_running",
            error=PolicyError,
        )
        check_counts(self, 0, "buffer_bytes", "max_waiting", "max_unheard", error=PolicyError)
        if self.retention_s is not None and self.retention_s <= 0:
            raise PolicyError("retention_s must be positive, or None")
        if self.key_field is not None and not all(self.key_field.split(".")):
            raise PolicyError(f"{self.key_field!r} is not the name of a field")
        if self.max_waiting is not None and self.max_running is None:
            raise PolicyError("max_waiting goes with max_running")

    @property
    def most_waiting(self) -> int:
        """How many calls wait for a place at most."""
        if self.max_waiting is not None:
            return self.max_waiting
        return _WAITING_EACH * (self.max_running or 0)

    @classmethod
    def of(cls, declared: MethodPolicy | Kind | str | None) -> MethodPolicy | None:
        """Return the policy that a declaration stands for; raises ``ValueError``."""
        if declared is None or isinstance(declared, MethodPolicy):
            return declared
        return cls(kind=_kind(declared))


class MethodPolicies:
    """The policy of every method, by the most specific pattern that fits.

    Patterns: ``/package.Service/Method``, ``/package.Service/*`` and ``*``. A
    declaration of None excludes methods. ``add`` brings in what services say of
    themselves, before calls arrive; after that, safe in any thread.
    """

    def __init__(
        self,
        methods: Mapping[str, MethodPolicy | Kind | str | None],
        default: MethodPolicy | Kind | str | None,
    ) -> None:
        self._patterns = {"*": MethodPolicy.of(default)}
        for pattern, declared in methods.items():
            if pattern != "*" and not (pattern.startswith("/") and pattern.count("/") == 2):
                raise PolicyError(f"{pattern!r} is not /package.Service/Method, /…/* or *")
            self._patterns[pattern] = MethodPolicy.of(declared)
        self._declared = frozenset(methods)

    def __iter__(self) -> Iterator[MethodPolicy]:
        return (policy for policy in self._patterns.values() if policy is not None)

    def add(self, method: str, policy: MethodPolicy | None) -> bool:
        """Take what a method says of itself; False where a declaration outweighs it.

        Declarations are whole: what is given to the constructor for a method, its
        service or ``*`` hides the method's own; the default does not.
        """
        service = method[: method.rfind("/") + 1] + "*"
        if not self._declared.isdisjoint((method, service, "*")):
            return False
        self._patterns[method] = policy
        return True

    def takes(self, method: str) -> bool:
        """Whether what the method says of itself counts, and was not taken yet."""
        service = method[: method.rfind("/") + 1] + "*"
        return method not in self._patterns and self._declared.isdisjoint((method, service, "*"))

    def declared(self) -> list[str]:
        """Return the patterns given to the constructor."""
        return sorted(self._declared)

    def marked(self, method: str) -> bool:
        """Whether the method itself, by its full name, is declared deduplicated.

        As streams must be: neither a pattern nor the default declares one.
        """
        return self._patterns.get(method) is not None

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


def _kind(word: Kind | str) -> Kind:
    try:
        return Kind(word)
    except ValueError:
        words = ", ".join(kind.value for kind in Kind)
        raise PolicyError(f"{word!r} is no kind of method: {words}") from None


def _numbers(codes: Iterable[Any]) -> Iterator[int]:
    for code in codes:
        # grpc.StatusCode: the core does not know gRPC, but its members' form.
        number = code.value[0] if isinstance(code, enum.Enum) else code
        if isinstance(number, str):
            number = CODE_NUMBERS.get(number)
        if type(number) is not int or number not in CODE_NUMBERS.values():
            raise PolicyError(f"{code!r} is not a gRPC status code")
        yield number
