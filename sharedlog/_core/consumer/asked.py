"""The steps that a shard asks of its store and of its handlers, beside those of the log.

As the log's steps they are yielded, and answered. ``Failed`` is thrown into the rule, and so is
``TrimmedLog``; every other error ends it, and its driver rolls back what is open in the store.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone
from sharedlog._core.consumer.state import Changes
from sharedlog._core.position import Position
from sharedlog._core.publishing import Placed
from sharedlog._core.reading import Committed
from sharedlog._core.steps import Rule, Step

_T = TypeVar("_T")
# Of errors, which may be each other's causes; of a line, for each of two.
_LONGEST_CHAIN, _HALF = 100, 245


class TakeStore(NamedTuple):
    """Set the store's fence to this number, if it is lower, and send the ``Checkpoint``: one step.

    Else ``Fenced`` ends the rule. ``gone``: what became of who had the shard before, which is
    counted (``Checkpoint.taken``). ``anew``: what was counted is forgotten, as an operator said so.
    """

    tag: str
    number: int
    gone: Gone
    anew: bool


class Resend(NamedTuple):
    """T6: send again the handlers' calls that have no answer, of messages behind the checkpoint.

    Raises ``StoreAway`` if a service is away.
    """

    tag: str
    checkpoint: Checkpoint


class Rewind(NamedTuple):
    """Have the store be done through another position, under a new epoch; its calls are let go.

    Where its fence is the number; else ``Fenced`` ends the rule.
    """

    tag: str
    number: int
    epoch: int
    position: Position | None


class NoteBegun(NamedTuple):
    """Note in the store, durably, that a message is begun for so many times: before it is."""

    tag: str
    number: int
    attempts: int


class Unit(NamedTuple):
    """A message of a transaction, and how many outputs there are with what it has published."""

    position: Position
    outputs: int


class Ran(NamedTuple):
    """Of how many messages the handlers ran, what they published, and have changed of a state.

    ``units``: the messages, where each had a run of its own.
    """

    done: int
    outputs: Sequence[Placed]
    changes: Changes | None = None
    units: Sequence[Unit] = ()


class Run(NamedTuple):
    """Begin a transaction of the store and run the handlers of these messages in it: ``Ran``.

    Of the first at least; ``Failed`` rolls back. ``changes``: of the state, where the log has it.
    """

    messages: list[Committed]
    changes: Changes | None = None


class Fire(NamedTuple):
    """Begin a transaction of the store and run the function of a timer in it: ``Ran``.

    ``timer``: its number among the consumer's.
    """

    tag: str
    timer: int
    changes: Changes | None = None


class Bury(NamedTuple):
    """Begin a transaction of the store without an effect, whose output is a dead letter: ``Ran``.

    ``why``: what the handler raised last, or what became of its processes.
    """

    message: Committed
    attempts: int
    why: str


class AppendWithin(NamedTuple):
    """Have a shard's append be in the store's transaction that runs: the log is in its database.

    It is in the log once the transaction commits. What ends the append, here or with the commit,
    ends the rule that asks, but for ``AlreadyCommitted``, which is thrown into it.
    """

    tag: str
    append: Rule[Any]


class CommitStore(NamedTuple):
    """Commit the store's transaction with this checkpoint, if the fence there is its number still.

    Else ``Fenced`` ends the rule, and nothing is committed. ``Failed``: nothing is. Any other
    error: that is not known. A store that takes nothing back commits the ``units`` one by one, and
    none behind one that fails: then it sends how many are committed, and ``Failed`` of the next.
    """

    tag: str
    checkpoint: Checkpoint
    units: Sequence[Unit] = ()


class PartialTransaction(NamedTuple):
    """What a store could do of a transaction: its first units."""

    done: int
    failed: Failed


class Passed(NamedTuple):
    """The log has committed a checkpoint: the calls go that it has passed. Does not fail."""

    tag: str
    checkpoint: Checkpoint


class Failed(Exception):
    """The handlers raised, or the store did not commit: nothing of the transaction is there.

    ``counts``: it was the handler's fault, and not that of a store that does not answer, or that
    asks to try again. None: it was, if a transaction of the checkpoint alone commits right after.
    ``why``: in a line. ``ends``: what the handler raised
    to end the process with, such as ``SystemExit``: raised once the attempt is noted. ``lasts``:
    no further try mends it.
    """

    def __init__(
        self,
        why: str,
        *,
        counts: bool | None,
        ends: BaseException | None = None,
        lasts: bool = False,
        partial: bool = False,
    ) -> None:
        """``why``: for people. ``partial``: something of it is there after all, and it stops."""
        super().__init__(why)
        self.why = why
        self.counts = counts
        self.ends = ends
        self.lasts = lasts
        self.partial = partial


def line_of(error: BaseException) -> str:
    """Say in a line what was raised, whatever it is: at most 500 characters, which UTF-8 has."""
    try:
        said = str(error)
    except Exception as inner:  # noqa: BLE001 - it is the user's
        said = f"(its text raises {type(inner).__name__})"
    line = " ".join(f"{type(error).__name__}: {said}".split())[:500]
    return line.encode(errors="backslashreplace").decode()


def story_of(error: BaseException) -> str:
    """Say in a line what was raised, and the first error that it came after, if there is one.

    A rollback that is refused is raised in the place of the error that it is for.
    """
    first = error
    for _ in range(_LONGEST_CHAIN):
        before = first.__cause__ or (None if first.__suppress_context__ else first.__context__)
        # What SQLAlchemy wraps is in its own text.
        if before is None or before is getattr(first, "orig", None):
            break
        first = before
    if first is error:
        return line_of(error)
    return f"{line_of(error)[:_HALF]}; after {line_of(first)[:_HALF]}"


class BatchEnds(BaseException):
    """Raised through a handler: its message begins a transaction of its own, and runs in that.

    Nothing of what it did is there.
    """


class Died(BaseException):
    """The process is dead: a test kit's, which no rule and no handler's failure hides."""


StoreStep = (
    TakeStore
    | Rewind
    | Resend
    | NoteBegun
    | Run
    | Fire
    | Bury
    | AppendWithin
    | CommitStore
    | Passed
)
Asked = Generator[Step | StoreStep, Any, _T]
