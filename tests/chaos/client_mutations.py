"""Rules of clients, their ids and their sessions, each broken on purpose (DESIGN §5)."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from chaos.sim.loop import Process
from curp._core.leader import Speed
from curp._replica.proposals import Proposals
from lease_server._session_table import SessionTable
from lease_server._sessionbook import SessionBook
from lease_server._sessions import SessionState
from lease_server._storage import MemoryLeaseStorage
from lease_server._table import LeaseTable
from rifl._stores import codec
from rifl._stores.shared.requests import Ending
from rifl._stores.shared.settlement import AttemptSettlement
from rifl._stores.sqlite import restored
from rifl.core._calling import answer as answer_rules
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.client_session import ClientSession
from rifl.core._serving import client_table
from rifl.core._serving.client_table import ClientTable
from rifl.core._shared.errors import LeaseExpired
from tests.chaos import group_mutations as groups

__all__ = [
    "answered_unregistered",
    "closed_session_reopened",
    "closed_session_served",
    "everybody_alive",
    "expired_always_sent_anew",
    "expired_never_ran",
    "granted_unregistered",
    "id_taken_of_another_store",
    "ids_granted_twice",
    "no_incarnation",
    "removed_while_running",
    "session_opens_by_its_name",
    "unused_session_forgotten_in_use",
]


def granted_unregistered(storage: type[Any]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: unittest.mock.patch.object(storage, "register", return_value=None)


@contextmanager
def id_taken_of_another_store() -> Iterator[None]:
    anyones = property(lambda self: 0)
    with ExitStack() as broken:
        broken.enter_context(unittest.mock.patch.object(AttemptAnswer, "store", anyones))
        broken.enter_context(
            unittest.mock.patch.object(ClientSession, "of_another_store", return_value=False)
        )
        yield


@contextmanager
def answered_unregistered() -> Iterator[None]:
    # Nor is it waited for before the handler starts.
    with (
        unittest.mock.patch.object(Proposals, "registered", return_value=None),
        groups.speed_without(Speed.UNREGISTERED)(),
    ):
        yield


@contextmanager
def ids_granted_twice() -> Iterator[None]:
    def clients_alone(connection: Any, store_id: str) -> None:
        connection.execute("DELETE FROM rifl_call WHERE client_id >= 0")
        connection.execute("DELETE FROM rifl_client WHERE client_id >= 0")

    class Zeros:
        def getrandbits(self, bits: int) -> int:
            return 0

    with ExitStack() as broken:
        for owner, name, value in (
            (restored, "begin_anew", clients_alone),
            (Process, "dice", lambda self: Zeros()),
            (client_table, "match_seed", lambda call, seed: None),
            (codec, "match_seed", lambda call, seed: None),
        ):
            broken.enter_context(unittest.mock.patch.object(owner, name, value))
        yield


def everybody_alive() -> AbstractContextManager[Any]:
    original = LeaseTable.renew

    def renew(self: LeaseTable, client_id: int, now: float) -> bool:
        return original(self, client_id, now) or client_id < self.next_id

    return unittest.mock.patch.object(LeaseTable, "renew", renew)


def no_incarnation() -> AbstractContextManager[Any]:
    original = MemoryLeaseStorage.__init__

    def init(self: MemoryLeaseStorage, token_bytes: Any = None) -> None:
        original(self, lambda count: b"\1" * count)

    stack = ExitStack()
    stack.enter_context(unittest.mock.patch.object(MemoryLeaseStorage, "__init__", init))
    stack.enter_context(everybody_alive())
    return stack


def closed_session_reopened() -> AbstractContextManager[Any]:
    original = SessionBook.open

    def open_(self: SessionBook, name: str, peer: bytes, *arguments: Any, **more: Any) -> Any:
        with self._lock:
            row = self._table.get(peer, name)
            if row is not None and row.state is not SessionState.OPEN:
                self._table._forget(row)
                self._storage.forget_session(row.client_id)
        return original(self, name, peer, *arguments, **more)

    return unittest.mock.patch.object(SessionBook, "open", open_)


def closed_session_served() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(
        SessionTable, "alive", lambda self, client_id, now: client_id in self._rows
    )


def session_opens_by_its_name() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(SessionTable, "require_owner", return_value=None)


def unused_session_forgotten_in_use() -> AbstractContextManager[Any]:
    original = SessionTable.renew

    def renew(self: SessionTable, client_id: int, now: float, **_: Any) -> bool:
        return original(self, client_id, now, used=False)

    return unittest.mock.patch.object(SessionTable, "renew", renew)


def expired_never_ran() -> AbstractContextManager[Any]:
    # Once a defect, too.
    original = AttemptSettlement._standing

    def standing(self: AttemptSettlement, attempt: Any, reply: Any) -> Any:
        if reply.ending is Ending.GONE:
            raise LeaseExpired("expired while the call ran")
        return original(self, attempt, reply)

    return unittest.mock.patch.object(AttemptSettlement, "_standing", standing)


def expired_always_sent_anew() -> AbstractContextManager[Any]:
    original = answer_rules.judge

    def judge(call: Any, answer: AttemptAnswer, *arguments: Any, **keywords: Any) -> Any:
        if answer.reason == "LEASE_EXPIRED" and call.key is None:
            return answer_rules.Judgement(answer_rules.Step.NEW_IDENTITY)
        return original(call, answer, *arguments, **keywords)

    return unittest.mock.patch("rifl.core._calling.client_session.judge", judge)


def removed_while_running() -> AbstractContextManager[Any]:
    def drop(self: ClientTable, client_ids: Any) -> list[int]:
        gone = list(client_ids)
        for client_id in gone:
            self._remove(client_id)
        return gone

    stack = ExitStack()
    stack.enter_context(unittest.mock.patch.object(ClientTable, "drop", drop))
    stack.enter_context(everybody_alive())
    return stack
