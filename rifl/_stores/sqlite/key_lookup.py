"""Look-ups of keys in the database: a key is claimed in memory, then looked up (DESIGN §6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from rifl._stores.pending import Pending, waking_together
from rifl._stores.sqlite.attempt import SqliteAttempt
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.client_table import match_payload
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import AllLater, Later, Replies
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.call import Call
from rifl.core._shared.errors import StoreUnavailable


class KeysOnDisk(Protocol):
    """The store, as its look-ups see it."""

    def look_up(self, attempts: Sequence[SqliteAttempt]) -> Replies:
        """Read the keys of attempts, and decide. May block; ends all, or none."""

    def look_up_beside(self, attempts: Sequence[SqliteAttempt]) -> Pending:
        """Do the same beside the event loop."""

    def in_background(self, work: Callable[[], Any]) -> Pending:
        """Do what may block beside the event loop."""

    def claim(self, call: Call, policy: MethodPolicy) -> Decision | Later:
        """Decide about a call."""

    def looked_up(self, attempt: SqliteAttempt) -> Pending:
        """Return what is done when the attempt's key was looked up."""

    def abandon(self, attempt: Attempt) -> Any:
        """Make the call new again."""


class LookupsBeside:
    """Looks keys up beside event loops, one job at a time: all that wait are read together.

    Any thread. A job that has begun takes also what comes while it reads.
    """

    def __init__(
        self,
        look_up: Callable[[Sequence[SqliteAttempt]], Replies],
        in_background: Callable[[Callable[[], Any]], Pending],
    ) -> None:
        self._look_up = look_up
        self._in_background = in_background
        self._lock = threading.Lock()
        self._waiting: list[tuple[Sequence[SqliteAttempt], Pending]] = []
        # Whether there is a job that has yet to find that none waits.
        self._at_work = False

    def begin(self, attempts: Sequence[SqliteAttempt]) -> Pending:
        """Have keys looked up; the result has an item for each."""
        reading = Pending()
        with self._lock:
            self._waiting.append((attempts, reading))
            if self._at_work:
                return reading
            self._at_work = True
        self._in_background(self._work)
        return reading

    def _work(self) -> None:
        while taken := self._take():
            with waking_together():
                self._read(taken)

    def _take(self) -> list[tuple[Sequence[SqliteAttempt], Pending]]:
        with self._lock:
            taken, self._waiting = self._waiting, []
            self._at_work = bool(taken)
        return taken

    def _read(self, taken: list[tuple[Sequence[SqliteAttempt], Pending]]) -> None:
        failed: Exception | None = None
        replies: Replies = ()
        try:
            replies = self._look_up([attempt for attempts, _ in taken for attempt in attempts])
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            failed = error if isinstance(error, Exception) else StoreUnavailable(repr(error))
        at = 0
        for attempts, reading in taken:
            if failed is not None:
                reading.fail(failed)
                continue
            reading.result = replies[at : at + len(attempts)]
            at += len(attempts)
            reading.succeed()


class KeyLookups(Later):
    """The look-ups of keys that arrivals claimed; the result has an item for each.

    The thread that waits reads; for an event loop another one does. A coroutine that is
    cancelled meanwhile leaves a claim, which is given up.
    """

    __slots__ = ("_keys", "attempts")

    def __init__(self, keys: KeysOnDisk, attempts: Sequence[SqliteAttempt]) -> None:
        self._keys = keys
        self.attempts = attempts

    def wait(self) -> list[Any]:
        """Look the keys up here."""
        if not self.attempts:
            return []
        return [_waited(reply) for reply in self._keys.look_up(self.attempts)]

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        """Look the keys up in another thread."""
        if not self.attempts:
            return []
        found: list[Any] = []
        for reply in (yield from self._read_beside()):
            try:
                found.append((yield from reply.__await__()) if isinstance(reply, Later) else reply)
            except Exception as error:  # noqa: BLE001 - its call's; the others go on
                found.append(error)
        return found

    def _read_beside(self) -> Generator[Any, Any, Replies]:
        reading = self._keys.look_up_beside(self.attempts)
        try:
            return (yield from reading.__await__())  # type: ignore[no-any-return]
        except BaseException:
            # In a thread: the store's lock may be held where a generator is closed.
            reading.add_callback(lambda _: self._keys.in_background(lambda: self._give_up(reading)))
            raise

    def _give_up(self, reading: Pending) -> None:
        for reply in reading.result or ():
            if isinstance(reply, Decision) and reply.verdict is Verdict.NEW:
                self._keys.abandon(reply.attempt)  # type: ignore[arg-type]  # NEW has one


class KeyLookup(KeyLookups):
    """The look-up of one key; the result is its decision."""

    __slots__ = ()

    def wait(self) -> Any:
        """Look the key up here; raises what the call is refused with."""
        (reply,) = self._keys.look_up(self.attempts)
        return _raised(reply.wait() if isinstance(reply, Later) else reply)

    def __await__(self) -> Generator[Any, Any, Any]:
        """Look the key up in another thread; the same."""
        (reply,) = yield from self._read_beside()
        return _raised((yield from reply.__await__()) if isinstance(reply, Later) else reply)


class MergedLookups(Later):
    """The replies of a batch, whose keys are looked up together."""

    __slots__ = ("_lookups", "_replies")

    def __init__(self, keys: KeysOnDisk, replies: Replies) -> None:
        self._replies = replies
        own = [reply for reply in replies if isinstance(reply, KeyLookup)]
        self._lookups = KeyLookups(keys, [attempt for each in own for attempt in each.attempts])

    def wait(self) -> list[Any]:
        """Look the keys up here, then wait for others' look-ups."""
        return self._with(self._lookups.wait()).wait()

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        """Await the same."""
        found = yield from self._lookups.__await__()
        return (yield from self._with(found).__await__())

    def _with(self, found: list[Any]) -> AllLater:
        left = iter(found)
        return AllLater(
            [next(left) if isinstance(reply, KeyLookup) else reply for reply in self._replies]
        )


class BesideLookup(Later):
    """The decision about an arrival whose key is being looked up for another one.

    It waits for that one's look-up, no longer than for its own, and takes what it found.
    """

    __slots__ = ("_attempt", "_call", "_keys", "_policy")

    def __init__(
        self, keys: KeysOnDisk, attempt: SqliteAttempt, call: Call, policy: MethodPolicy
    ) -> None:
        self._keys = keys
        self._attempt = attempt
        self._call = call
        self._policy = policy

    def wait(self) -> Any:
        """Block until the key was looked up; then decide."""
        decision: Any = self
        while isinstance(decision, BesideLookup):
            self._keys.looked_up(decision._attempt).wait()
            decision = decision._decide()
        return decision.wait() if isinstance(decision, Later) else decision

    def __await__(self) -> Generator[Any, Any, Any]:
        """Await that."""
        decision: Any = self
        while isinstance(decision, BesideLookup):
            yield from self._keys.looked_up(decision._attempt).__await__()
            decision = decision._decide()
        if isinstance(decision, Later):
            decision = yield from decision.__await__()
        return decision

    def _decide(self) -> Any:
        if (found := self._attempt.found) is not None:
            fingerprint, record = found
            match_payload(self._call, fingerprint)
            return Decision(Verdict.COMPLETED, None, record, fingerprint is not None)
        return self._keys.claim(self._call, self._policy)


def _waited(reply: Any) -> Any:
    try:
        return reply.wait() if isinstance(reply, Later) else reply
    except Exception as error:  # noqa: BLE001 - its call's; the others go on
        return error


def _raised(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply
