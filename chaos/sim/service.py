"""Model of the world: accounts, whose effects are counted, and what their methods are.

Its state outlives every process and is not rifl's: what an effect did is done, unless
it was part of a transaction that did not commit. So an operation that runs twice, or
an answer whose operation never ran, shows.
"""

from __future__ import annotations

from typing import NamedTuple

from chaos.check.history import History
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._shared.record import CompletionRecord

__all__ = [
    "ABORTED",
    "CLAIMED",
    "METHODS",
    "POLICIES",
    "RAISED",
    "REQUEST_STREAMS",
    "RESPONSE_STREAMS",
    "UNRECORDED",
    "Accounts",
    "Operation",
    "decode",
    "encode",
    "policy_of",
]

_UNAVAILABLE = 14
METHODS = {
    "/sim.Accounts/Add": MethodPolicy(kind=Kind.PLAIN),
    "/sim.Accounts/AddAtomic": MethodPolicy(kind=Kind.ATOMIC),
    "/sim.Accounts/Touch": MethodPolicy(kind=Kind.IDEMPOTENT, unrecorded=frozenset({_UNAVAILABLE})),
    "/sim.Accounts/TouchUnclaimed": MethodPolicy(
        kind=Kind.IDEMPOTENT, unrecorded=frozenset({_UNAVAILABLE}), claim="never"
    ),
    "/sim.Accounts/Read": MethodPolicy(kind=Kind.IDEMPOTENT),
    # So that short streams are read, or kept, whole, and long ones are not.
    "/sim.Accounts/AddAll": MethodPolicy(kind=Kind.PLAIN, buffer_bytes=110),
    "/sim.Accounts/AddAllAtomic": MethodPolicy(kind=Kind.ATOMIC, buffer_bytes=110),
    "/sim.Accounts/TouchAll": MethodPolicy(kind=Kind.IDEMPOTENT, buffer_bytes=0),
    "/sim.Accounts/AddTelling": MethodPolicy(kind=Kind.PLAIN, max_response_bytes=200),
    "/sim.Accounts/TouchTelling": MethodPolicy(
        kind=Kind.IDEMPOTENT, unrecorded=frozenset({_UNAVAILABLE}), max_response_bytes=200
    ),
}
REQUEST_STREAMS = frozenset(method for method in METHODS if "All" in method)
RESPONSE_STREAMS = frozenset(method for method in METHODS if "Telling" in method)
POLICIES = MethodPolicies(METHODS, None)
# Of replicas all of whose methods are claimed: what is resolved there can be *not executed*.
CLAIMED = MethodPolicies(
    {method: policy for method, policy in METHODS.items() if policy.claim != "never"}, None
)
# What its handlers answer that have no effect, raise, or ask to be called again.
ABORTED = CompletionRecord(code=9, details="the account does not allow it")
RAISED = CompletionRecord(code=2, details="Exception calling application: sim")
UNRECORDED = CompletionRecord(code=_UNAVAILABLE, details="come back later")


class Operation(NamedTuple):
    """What a request asks for; ``call`` is the simulation's own number for it."""

    call: int
    account: str
    amount: int
    behaviour: str


def policy_of(method: str) -> MethodPolicy:
    """Return how a method is served."""
    policy = POLICIES.find(method)
    if policy is None:
        raise AssertionError(method)
    return policy


def encode(operation: Operation) -> bytes:
    """Return a request."""
    return f"{operation[0]} {operation[1]} {operation[2]} {operation[3]}".encode()


def decode(request: bytes) -> Operation:
    """Read a request."""
    call, account, amount, behaviour = request.decode().split(" ")
    return Operation(int(call), account, int(amount), behaviour)


class Accounts:
    """Every account: how many effects it has seen, and their sum."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._accounts: dict[str, tuple[int, int]] = {}
        self._once: set[int] = set()
        self._touched: set[int] = set()

    def apply(self, operation: Operation, at: float) -> bytes:
        """Carry an operation out, for good; the answer."""
        version, total = self._accounts.get(operation.account, (0, 0))
        version, total = version + 1, total + operation.amount
        self._accounts[operation.account] = version, total
        self._touched.add(operation.call)
        self._history.effect(at, operation.call, operation.account, version, operation.amount)
        return b"%d %d" % (version, total)

    def apply_once(self, operation: Operation, at: float) -> bool:
        """Carry an operation out unless that was done before: the application's own care."""
        if operation.call in self._once:
            return False
        self._once.add(operation.call)
        self.apply(operation, at)
        return True

    def touched(self, operation: Operation) -> bool:
        """Whether an operation had an effect before."""
        return operation.call in self._touched

    def preview(self, operation: Operation) -> bytes:
        """Return what ``apply`` would answer now."""
        version, total = self._accounts.get(operation.account, (0, 0))
        return b"%d %d" % (version + 1, total + operation.amount)

    def read(self, operation: Operation) -> bytes:
        """Return what an account holds now."""
        return b"%d %d" % self._accounts.get(operation.account, (0, 0))

    def finish(self) -> None:
        """Record what is there in the end."""
        for account, (version, total) in self._accounts.items():
            self._history.final(account, version, total)
