"""Renewals that channels of a process share: one request renews them all (DESIGN §5)."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from _rifl_ground.system import at_forks
from rifl.core._calling.client_lease import ClientLease
from rifl.core._calling.client_session import ClientSession


class Renewing(Protocol):
    """What is asked of a client whose lease others renew, too, and what it is told."""

    session: ClientSession
    closed: bool

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while its session is asked."""

    @property
    def forked(self) -> bool:
        """Whether it is the parent's, in a child."""

    def renewed(self, lease: ClientLease, reply: Any, sent_at: float) -> None:
        """Take a renewal's reply."""

    def not_accompanied(self, lease: ClientLease) -> None:
        """Note that another channel's request did not renew this lease."""


class Companion(NamedTuple):
    """A lease that another client's renewal renews, too. Its client may be gone meanwhile."""

    state: weakref.ref[Renewing]
    lease: ClientLease


class Renewals:
    """Clients of one process whose channels reach the same servers, and look the same to them.

    So one of them may renew the leases of all: each lease has its own token and its own
    verdict. A verdict that is no *yes* counts for nothing: that client asks for itself, by
    its own channel. Takes no lock of its own, since clients are collected at any moment.
    """

    def __init__(self) -> None:
        self._members: dict[int, weakref.ref[Renewing]] = {}
        self._numbers = itertools.count()

    def join(self, state: Renewing) -> None:
        """Take a client in, for as long as it lives. Any thread."""
        members, number = self._members, next(self._numbers)
        members[number] = weakref.ref(state, lambda _: members.pop(number, None))

    def companions(
        self, first: Renewing, lease: ClientLease, now: float, until: float
    ) -> list[Companion]:
        """Take the leases that the renewal of ``lease`` is to renew, too.

        Until ``until``, or until they are told, their clients do not renew them. Any thread.
        """
        with first.lock:
            room = first.session.room_for_companions()
        taken: list[Companion] = []
        if not room:
            return taken
        for reference in list(self._members.values()):
            state = reference()
            if state is None or state is first or state.closed or state.forked:
                continue
            with state.lock:
                found = state.session.accompany(lease, now, until)
            if found is not None:
                taken.append(Companion(reference, found))
                if len(taken) == room:
                    break
        return taken


def settle(companions: Sequence[Companion], replies: Sequence[Any], sent_at: float) -> None:
    """Tell companions what became of their leases: ``replies`` are the first ones', in order."""
    for companion, reply in itertools.zip_longest(companions, replies[: len(companions)]):
        state, lease = companion.state(), companion.lease
        if state is None or state.closed or state.forked:
            continue
        if reply is not None and reply.client_id == lease.client_id and not reply.refused:
            state.renewed(lease, reply, sent_at)
        else:
            state.not_accompanied(lease)


_shared: weakref.WeakValueDictionary[Hashable, Renewals] = weakref.WeakValueDictionary()


def share_renewals(state: Renewing, key: Hashable) -> Renewals:
    """Have a client share its renewals with all that have an equal key. Any thread."""
    renewals = _shared.get(key)
    if renewals is None:
        # Two threads may make one each: then the first one's client renews for itself.
        renewals = _shared[key] = Renewals()
    renewals.join(state)
    return renewals


def _forget() -> None:
    # The parent's clients are of no use here, and their locks may never be released.
    global _shared
    _shared = weakref.WeakValueDictionary()


at_forks(after_in_child=_forget)
