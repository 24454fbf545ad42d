"""Steps of a target's rules: what they ask of a shell, and what they tell players (§15)."""

from __future__ import annotations

import enum
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from sharedlog._core.position import Position
from sharedlog._core.target_delivery import Delivery
from sharedlog._core.target_index import Index
from sharedlog.v1.sharedlog_pb2 import Envelope

_T = TypeVar("_T")
Rule = Generator[Any, Any, _T]
# Of google.rpc.Code.
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED = 3, 5, 7
FAILED_PRECONDITION, ABORTED, UNAVAILABLE, DATA_LOSS = 9, 10, 14, 15


class TargetUnavailable(Exception):
    """The target takes nothing at present; nothing of what was asked for stands."""


class MethodRefused(Exception):
    """The message will never run here; ``code`` is a google.rpc.Code."""

    def __init__(self, code: int, message: str) -> None:
        """``message`` says why."""
        super().__init__(code, message)
        self.code = code

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[1])


class HandlerKind(enum.Enum):
    """What a crash may leave of a handler, as its method is declared."""

    PLAIN = "plain"
    IDEMPOTENT = "idempotent"
    ATOMIC = "atomic"


class Called(NamedTuple):
    """The method that a message is for, its kind, and what is handed to the handler."""

    method: str
    kind: HandlerKind
    content: Envelope


class RowMove(NamedTuple):
    """A row's next value, if it is ``expected`` now."""

    key: str
    expected: bytes | None
    value: bytes


class FetchRows(NamedTuple):
    """Read rows: a mapping; raises ``TargetUnavailable``."""

    keys: Sequence[str]


class MoveTargetRows(NamedTuple):
    """Move rows, all or none, durably: whether they were as expected.

    Raises ``TargetUnavailable``, also if it is unknown whether they moved.
    """

    moves: Sequence[RowMove]


class RunHandler(NamedTuple):
    """Run a message's handler: an ``Ended``; of an atomic one ``move`` is in its transaction.

    ``more``: another one is at hand, and may share that. Raises ``MethodRefused`` and
    ``TargetUnavailable``: nothing ran.
    """

    delivery: Delivery
    called: Called
    move: RowMove | None
    redelivered: bool
    more: bool


class Ended(NamedTuple):
    """What became of a handler.

    ``committed``: an atomic one's transaction was. ``broken``: it did not come to its end, which
    is not its own doing. ``pending``: it is unknown whether it committed. ``committing``: its
    transaction, which others share, has yet to commit (``Await``). ``crowded``: it failed for
    what those before it in that transaction may hold. ``doubtful``: it is the store that failed,
    unless a row can be moved right after.
    """

    code: int = 0
    details: str = ""
    committed: bool = False
    broken: bool = False
    pending: bool = False
    committing: Any = None
    crowded: bool = False
    doubtful: bool = False


class Await(NamedTuple):
    """Wait for transactions that commit: how many did, from the first on, and why not all."""

    committing: Sequence[Any]


class AnswerKind(enum.Enum):
    """What a player is told; see the protocol."""

    DONE = "done"
    GAP = "gap"
    FAILED = "failed"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    FORKED = "forked"
    UNAVAILABLE = "unavailable"


class DeliveryAnswer(NamedTuple):
    """An answer to a delivery, or to all through its place."""

    kind: AnswerKind
    tag: str
    place: Position
    code: int = 0
    details: str = ""
    found: Index | None = None


class TellPlayer(NamedTuple):
    """Answer the player; the rule does not wait."""

    answer: DeliveryAnswer


class Confirm(NamedTuple):
    """Skips up to this number are among the dead letters."""

    number: int
