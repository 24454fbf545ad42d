"""``Records``: where decisions are made and records kept, as the rules of serving see it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, Protocol

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

# What a store says to a question: the result, a ``Later`` of it, or the error it raises.
Reply = Any
# In the place of a reply: the store was not asked yet.
NOT_ASKED: Final = object()


class Held(Protocol):
    """Counts the space of unacknowledged answers. Any thread."""

    # Whether anything is counted at all: of most servers nothing ever is.
    active: bool

    def ask(self, attempt: Attempt) -> Reply:
        """Find out what ``admit`` has to know and does not."""

    def admit(self, attempt: Attempt) -> None:
        """Raise ``WindowExceeded`` for a new call whose answer would have no room."""

    def note(self, attempt: Attempt, size: int) -> None:
        """Note that an answer of so many bytes is kept."""


class Records(Protocol):
    """Where decisions are made and records kept: a store, as the rules see it.

    A method that has to wait returns a ``Later``; else it returns its result, so
    that a store in memory costs no hand-over.
    """

    @property
    def decides_here(self) -> bool:
        """Whether a claim is a decision of this process, which costs nothing."""

    @property
    def held(self) -> Held:
        """The space that kept answers take."""

    def claim(self, call: Call, policy: MethodPolicy) -> Decision | Later:
        """Decide about a call and claim it if new: one atomic step."""

    def start(self, attempt: Attempt) -> Later | None:
        """Make durable what must be durable before the handler runs."""

    def committed(self, attempt: Attempt) -> CompletionRecord | Later | None:
        """Return the record that the handler's own transaction committed.

        Of an attempt that is ``unclaimed``, and not known to have committed: the record that
        stands, of any replica. None: the attempt is claimed from now on. An error has ended
        the attempt; ``InProgress``: the call must be served anew.
        """

    def finish(self, attempt: Attempt, record: CompletionRecord) -> Later | None:
        """Make the record durable, then settle the attempt with it.

        A ``Later`` whose result is a record says that this one stands instead.
        """

    def may_have_run(self, attempt: Attempt) -> bool:
        """Whether a claimed call may have run without a trace, before a crash."""

    def adopt(self, attempt: Attempt, record: CompletionRecord) -> Later | None:
        """Settle the attempt with a record that is durable already."""

    def abandon(self, attempt: Attempt) -> Later | None:
        """Make the call new again, durably, and wake its waiters.

        Where ``attempt.ran`` is set ``may_have_run`` says so of the next one.
        """


def waited(reply: Reply) -> Generator[Any, Any, Any]:
    """Return what the store replied: waited for where it is not there yet, raised if an error."""
    if isinstance(reply, Exception):
        raise reply
    return (yield reply) if isinstance(reply, Later) else reply
