"""What a batch asks of a store for all its items at once (DESIGN §4, §6)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.serving import Records
from rifl.core._shared.call import Call
from rifl.core._shared.record import CompletionRecord

# One for each item, in order: what the method for one gives, or the error it raises.
Replies = Sequence[Any]


class Group(Protocol):
    """``Records``, asked for many items at once.

    Each method does for every item, in order, what the one it is named after does for
    one, and gives ``Replies``, or a ``Later`` whose result they are. One item's error
    is its own. The order matters: of two claims of one identity the first one wins.
    """

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> Replies | Later:
        """Decide about calls of one client and claim those that are new."""

    def start_all(self, attempts: Sequence[Attempt]) -> Replies | Later:
        """Make durable what has to be before their handlers run: one commit."""

    def finish_all(
        self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]
    ) -> Replies | Later:
        """Make the records durable, one commit for all, then settle the attempts."""


class Together(Later):
    """Several to wait for; the result has an error where one of them raises it.

    ``replies`` are what is waited for, and what is there already.
    """

    __slots__ = ("replies",)

    def __init__(self, replies: Replies) -> None:
        self.replies = replies

    def wait(self) -> list[Any]:
        """Block for each of them."""
        return self._wait(lambda reply: reply.wait())

    def wait_for_call(self, remaining_s: Callable[[], float | None]) -> list[Any]:
        """Do the same for a call with a deadline."""
        return self._wait(lambda reply: reply.wait_for_call(remaining_s))

    def _wait(self, wait: Callable[[Later], Any]) -> list[Any]:
        found: list[Any] = []
        for reply in self.replies:
            try:
                found.append(wait(reply) if isinstance(reply, Later) else reply)
            except Exception as error:  # noqa: BLE001 - its item's; the others go on
                found.append(error)
        return found

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        """Await each of them."""
        found: list[Any] = []
        for reply in self.replies:
            try:
                found.append((yield from reply.__await__()) if isinstance(reply, Later) else reply)
            except Exception as error:  # noqa: BLE001 - as above
                found.append(error)
        return found


def group_of(store: Records) -> Group:
    """Return the store's own group operations; one by one where it has none."""
    return _GroupOf(store)


class _GroupOf:
    """Takes each method from the store if that has it."""

    def __init__(self, store: Records) -> None:
        self._store = store
        for name in ("claim_all", "start_all", "finish_all"):
            own = getattr(store, name, None)
            if own is not None:
                setattr(self, name, own)

    def claim_all(self, calls: Sequence[Call], policy: MethodPolicy) -> Replies | Later:
        return _each(lambda call: self._store.claim(call, policy), calls)

    def start_all(self, attempts: Sequence[Attempt]) -> Replies | Later:
        return _each(self._store.start, attempts)

    def finish_all(
        self, attempts: Sequence[Attempt], records: Sequence[CompletionRecord]
    ) -> Replies | Later:
        pairs = zip(attempts, records, strict=True)
        return _each(lambda pair: self._store.finish(*pair), pairs)


def _each(ask: Callable[[Any], Any], subjects: Iterable[Any]) -> Replies | Later:
    replies: list[Any] = []
    for subject in subjects:
        try:
            replies.append(ask(subject))
        except Exception as error:  # noqa: BLE001 - its item's; the others go on
            replies.append(error)
    if any(isinstance(reply, Later) for reply in replies):
        return Together(replies)
    return replies
