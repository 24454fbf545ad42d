"""Attempts of this replica, and those on others that an arrival here waits for."""

from __future__ import annotations

import asyncio
import secrets as randomness
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from rifl._stores.shared.requests import Claimed
from rifl.core._serving.client_entry import Attempt, ClientEntry
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.invariant import InvariantViolated

_TOKEN_BYTES = 16
_WAKES_REMEMBERED = 4096
# Begins the token of an attempt before which another may have had its effect.
_AGAIN = b"again-"
_NO_ENTRY = ClientEntry(0, 1)


class SharedAttempt(Attempt):
    """An attempt with its token; on a stand-in for one on another replica, that one's.

    ``number``: of this replica's attempts, from 1 in their order; 0 on a stand-in.

    ``claimed``: the store has said that it is the one to run. ``passed``: another
    arrival of the call has been that while this one asked. ``owed``: its handler is done,
    and the record is not in the store yet. ``left``: its coroutine was cancelled, and a
    thread that it began may go on for an unknown time. ``block``: its part of a shared
    transaction, while that is open; ``shared``: what became of it. ``refused``: the store
    refused the commit of a run without a claim. ``stays``: one may be in flight, which its
    claim, made since, keeps from being carried out.
    """

    entry = _NO_ENTRY
    awaited = False
    block: Any = None
    claimed = False
    given_up = False
    left = False
    passed = False
    refused = False
    shared: Later | None = None
    stays = False

    def __init__(
        self, call: Call, policy: MethodPolicy, number: int, token: bytes, owner: str
    ) -> None:
        self.call = call
        self.policy = policy
        self.number = number
        self.token = token
        self.owner = owner


class Attempts:
    """Who runs what here, and who waits for whom. Thread-safe.

    A stand-in is an attempt on another replica: it ends when that replica's does, as
    a message says. The message may come before the reply that says to wait for it,
    so the last few thousand are remembered.
    """

    def __init__(self, owner: str, token_hex: Callable[[int], str] = randomness.token_hex) -> None:
        self._owner = owner
        self._token_hex = token_hex
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._idle_awaited = 0
        self._numbers = 0
        self._running: dict[bytes, SharedAttempt] = {}
        # The same attempts by their calls: several arrivals of one call may ask at once.
        self._arrivals: dict[tuple[int, int | bytes], list[SharedAttempt]] = {}
        self._elsewhere: dict[bytes, SharedAttempt] = {}
        # No message will come about these: they are polled.
        self._unnoted: set[bytes] = set()
        self._woken: OrderedDict[bytes, None] = OrderedDict()
        # The store has stopped for good.
        self._lost = False
        # How often messages may have been missed.
        self.gaps = 0

    def __len__(self) -> int:
        """How many run here, or have run and are not recorded; none that was only asked for."""
        return self._count()

    def handling(self) -> int:
        """How many have a handler that has not ended."""
        running = list(self._running.values())
        return sum(not (each.given_up or each.owed) for each in running)

    def unsettled(self) -> int:
        """How many the store may say that this replica runs."""
        return len(self._running)

    def new_token(self) -> bytes:
        """Return a token never used before."""
        return self._token_hex(_TOKEN_BYTES).encode()

    def new(self, call: Call, policy: MethodPolicy) -> SharedAttempt:
        """Make an attempt of this replica's, with a token never used before."""
        with self._lock:
            return self._make(call, policy)

    def arrive(self, call: Call, policy: MethodPolicy) -> SharedAttempt:
        """Return the call's run of which the store does not know, if one is here; else ``new``."""
        with self._lock:
            arrivals = self._arrivals.get((call.client_id, call.identity), ())
            unclaimed = next((each for each in arrivals if each.unclaimed), None)
            return self._make(call, policy) if unclaimed is None else unclaimed

    def arrive_first(self, call: Call, policy: MethodPolicy) -> SharedAttempt | None:
        """The same, but the new one is such a run: None where the store is asked for others."""
        with self._lock:
            arrivals = self._arrivals.get((call.client_id, call.identity), ())
            if arrivals:
                return next((each for each in arrivals if each.unclaimed), None)
            attempt = self._make(call, policy)
            attempt.unclaimed = True
            return attempt

    def runs_again(self, attempt: SharedAttempt) -> None:
        """Note, before it is claimed, that an earlier run of its call may have had its effect.

        Its token says so from now on, to a replica that takes it over.
        """
        with self._lock:
            attempt.ran = True
            if not may_run_again(attempt.token):
                del self._running[attempt.token]
                attempt.token = _AGAIN + attempt.token
                self._running[attempt.token] = attempt

    def get(self, token: bytes) -> SharedAttempt | None:
        """Return the attempt of this replica's with this token."""
        return self._running.get(token)

    def settle(self, attempt: SharedAttempt) -> None:
        """End an attempt of this replica's."""
        with self._lock:
            if self._running.pop(attempt.token, None) is not None:
                self._leave(attempt)
            if self._idle_awaited:
                self._note_idle()
            attempt.ended = True
            waiters, attempt.waiters = attempt.waiters, ()
        for wake in waiters:
            wake()

    def give_up(self, attempt: SharedAttempt) -> bool:
        """Note that an attempt never runs; whether its call may, or did, by another arrival.

        As far as this replica knows: one that was claimed here meanwhile, still asks, or
        waits for one of these.
        """
        call = attempt.call
        with self._lock:
            attempt.given_up = True
            self._note_idle()
            arrivals = self._arrivals.get((call.client_id, call.identity), ())
            return attempt.passed or any(
                each.awaited or each.left or not each.given_up for each in arrivals
            )

    def settled(self, timeout_s: float) -> bool:
        """Wait until none runs; False if that took longer."""
        with self._idle:
            self._idle_awaited += 1
            try:
                return self._idle.wait_for(lambda: not self._count(), timeout_s)
            finally:
                self._idle_awaited -= 1

    def owe(self, attempt: SharedAttempt) -> None:
        """Note that a handler is done, and only its record is owed."""
        with self._lock:
            attempt.owed = True
            self._note_idle()

    def leave_behind(self, attempt: SharedAttempt) -> None:
        """Keep one whose handler may go on for as long as this process lives; none waits for it.

        Arrivals here find it running, and others' replicas do so until this one is gone.
        """
        with self._lock:
            attempt.given_up = True
            self._note_idle()

    def lose(self) -> None:
        """Note that what is owed can never be paid."""
        with self._lock:
            self._lost = True
            self._note_idle()

    def wait(self, attempt: Attempt, wake: Callable[[], None]) -> bool:
        """Have ``wake`` called when the attempt ends; False if it has."""
        with self._lock:
            if attempt.ended:
                return False
            attempt.waiters = [*attempt.waiters, wake]
            return True

    def leave(self, attempt: Attempt, wake: Callable[[], None]) -> None:
        """No longer wait."""
        with self._lock:
            attempt.waiters = [other for other in attempt.waiters if other != wake]
            if attempt.waiters or not isinstance(attempt, SharedAttempt):
                return
            # Not another one that was made for the same token since.
            if self._elsewhere.get(attempt.token) is attempt:
                del self._elsewhere[attempt.token]
                # Who was given it and does not wait yet decides again: no message finds it now.
                attempt.ended = True

    def stand_in(self, call: Call, policy: MethodPolicy, seen: Claimed, gaps: int) -> SharedAttempt:
        """Return the stand-in for an attempt elsewhere; ``gaps`` from before it was seen."""
        token, owner = seen.token, seen.owner
        with self._lock:
            if not seen.noted:
                self._unnoted.add(token)
            stand_in = self._elsewhere.get(token)
            if stand_in is None:
                stand_in = SharedAttempt(call, policy, 0, token, owner)
                if token in self._woken or gaps != self.gaps:
                    stand_in.ended = True
                else:
                    self._elsewhere[token] = stand_in
            return stand_in

    def wake(self, token: bytes) -> None:
        """Wake the callers that wait for an attempt: it ended on another replica."""
        with self._lock:
            self._woken[token] = None
            if len(self._woken) > _WAKES_REMEMBERED:
                self._woken.popitem(last=False)
            stand_in = self._elsewhere.pop(token, None)
        if stand_in is not None:
            self._end(stand_in)

    def wake_all(self) -> None:
        """Messages may have been missed: everyone decides again."""
        with self._lock:
            self.gaps += 1
            stand_ins = list(self._elsewhere.values())
            self._elsewhere.clear()
        for stand_in in stand_ins:
            self._end(stand_in)

    def wake_for(self, lost: Callable[[str], bool]) -> None:
        """Wake callers that wait for a ``lost`` replica, or for no message: they decide again."""
        with self._lock:
            stand_ins = list(self._elsewhere.values())
            unnoted, self._unnoted = self._unnoted, set()
        for stand_in in stand_ins:
            if stand_in.token in unnoted or lost(stand_in.owner):
                with self._lock:
                    self._elsewhere.pop(stand_in.token, None)
                self._end(stand_in)

    def _make(self, call: Call, policy: MethodPolicy) -> SharedAttempt:
        token = self.new_token()
        self._numbers += 1
        attempt = SharedAttempt(call, policy, self._numbers, token, self._owner)
        self._running[token] = attempt
        self._arrivals.setdefault((call.client_id, call.identity), []).append(attempt)
        return attempt

    def _count(self) -> int:
        # Of a copy, made at once: without the lock, as a signal's handler may ask.
        running = list(self._running.values())
        return sum(not each.given_up and not (self._lost and each.owed) for each in running)

    def _note_idle(self) -> None:
        if self._idle_awaited and not self._count():
            self._idle.notify_all()

    def _leave(self, attempt: SharedAttempt) -> None:
        identity = attempt.call.client_id, attempt.call.identity
        arrivals = self._arrivals[identity]
        if len(arrivals) == 1:
            # Its own.
            del self._arrivals[identity]
            return
        arrivals.remove(attempt)
        if attempt.claimed:
            for each in arrivals:
                each.passed = True

    def _end(self, attempt: Attempt) -> None:
        with self._lock:
            attempt.ended = True
            waiters, attempt.waiters = attempt.waiters, ()
        for wake in waiters:
            wake()


def of_shared(attempt: Attempt) -> SharedAttempt:
    """Return the attempt as what it is."""
    if not isinstance(attempt, SharedAttempt):
        raise InvariantViolated("an attempt of another store")
    return attempt


def may_run_again(token: bytes) -> bool:
    """Whether another run may have had its effect before the attempt with this token."""
    return token.startswith(_AGAIN)


def loop_ends() -> bool:
    """Whether every task of the running loop has been cancelled, or has ended.

    So ``asyncio.run`` does when its main coroutine has ended; a server's own cancels its
    handlers one by one. False where no loop runs.
    """
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return False
    return all(task.cancelling() for task in tasks)
