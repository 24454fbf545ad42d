"""Rules of calls and their records, each broken on purpose (DESIGN §3, §4, §6)."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from _rifl_ground.refusals import Outcome
from chaos.sim import shared_data
from rifl._server import reply
from rifl._stores.embedded import EmbeddedStore
from rifl._stores.shared.requests import Ending
from rifl._stores.shared.settlement import AttemptSettlement
from rifl._stores.shared.store import SharedStore
from rifl._stores.sqlite import store
from rifl._stores.sqlite.database import Database
from rifl._stores.sqlite.journal import Journal
from rifl._stores.sqlite.journal_entries import JournalEntry
from rifl._stores.sqlite.store import SqliteStore
from rifl.core._calling import answer as answer_rules
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.batch_flow import BatchFlow
from rifl.core._calling.call_flow import CallFlow
from rifl.core._calling.client_session import ClientSession
from rifl.core._serving import client_table, serving
from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.client_table import ClientTable
from rifl.core._serving.result_tracker import ResultTracker
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import RiflError
from tests.chaos.broken import replaced

__all__ = [
    "acknowledged_looks_new",
    "acknowledgement_not_durable",
    "answer_not_kept",
    "batch_written_in_part",
    "forwarded_labels_believed",
    "intents_forgotten",
    "item_redrawn",
    "key_let_go_early",
    "key_let_go_while_it_runs",
    "key_not_executed_as_this_attempt_was_not",
    "keys_aged_by_dates",
    "late_answer_sent",
    "late_finisher_not_fenced",
    "lost_never_arrived",
    "no_intent",
    "one_runs_word_for_all",
    "out_of_time_means_not_executed",
    "record_after_reply",
    "record_given_up",
    "refused_means_will_not",
    "resolution_not_recorded",
    "running_not_known",
    "seq_redrawn",
    "taken_over_from_the_living",
    "unlabelled_means_not_executed",
]


def seq_redrawn() -> AbstractContextManager[Any]:
    def next_attempt(self: ClientSession, call: Any) -> None:
        call.attempt += 1
        if call.key is None:
            self.complete(call)
            call.seq = call.lease.tracker.begin()[0]
            call.first_incomplete = call.lease.tracker.first_incomplete
            call.completed = ()

    return unittest.mock.patch.object(ClientSession, "next_attempt", next_attempt)


def running_not_known() -> AbstractContextManager[Any]:
    original = ClientTable._known

    def known(self: ClientTable, entry: Any, call: Any) -> Any:
        decision = original(self, entry, call)
        if decision is not None and decision.verdict is Verdict.IN_PROGRESS:
            del entry.running[call.identity]
            if call.key is None:
                entry.tracker.abandon(call.seq)
            else:
                entry.keyed.abandon(call.key)
            return None
        return decision

    return unittest.mock.patch.object(ClientTable, "_known", known)


def acknowledged_looks_new() -> AbstractContextManager[Any]:
    original = ResultTracker.peek

    def peek(self: ResultTracker, seq: int) -> Verdict:
        verdict = original(self, seq)
        return Verdict.NEW if verdict is Verdict.STALE else verdict

    return unittest.mock.patch.object(ResultTracker, "peek", peek)


@contextmanager
def no_intent() -> Iterator[None]:
    with unittest.mock.patch.object(SqliteStore, "start", EmbeddedStore.start):
        yield


def record_after_reply() -> AbstractContextManager[Any]:
    original = SqliteStore.finish

    def finish(self: SqliteStore, attempt: Any, record: Any) -> None:
        original(self, attempt, record)

    return unittest.mock.patch.object(SqliteStore, "finish", finish)


def acknowledgement_not_durable() -> AbstractContextManager[Any]:
    original = Journal.acknowledge

    def acknowledge(
        self: Journal, client_id: int, first: int, completed: bytes, released: list[int]
    ) -> None:
        original(self, client_id, 1, b"", released)

    return unittest.mock.patch.object(Journal, "acknowledge", acknowledge)


def intents_forgotten() -> AbstractContextManager[Any]:
    def close_intents(self: Database, record: Any, until_s: Any) -> None:
        self._writer.execute("DELETE FROM rifl_call WHERE record IS NULL")

    return unittest.mock.patch.object(Database, "close_intents", close_intents)


def record_given_up() -> AbstractContextManager[Any]:
    original = JournalEntry.__init__

    def init(self: JournalEntry, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **{**keywords, "patient": False})

    return unittest.mock.patch.object(JournalEntry, "__init__", init)


def late_finisher_not_fenced() -> AbstractContextManager[Any]:
    original = shared_data.SharedData.is_current

    def is_current(self: Any, call: Any, token: bytes, kind: Any) -> bool:
        return True

    del original
    return unittest.mock.patch.object(shared_data.SharedData, "is_current", is_current)


def late_answer_sent() -> AbstractContextManager[Any]:
    # Once a defect, which the simulator found: kept as what it must find again.
    original = AttemptSettlement._standing

    def standing(self: AttemptSettlement, attempt: Any, reply: Any) -> Any:
        if reply.ending is Ending.ACKNOWLEDGED:
            return None
        return original(self, attempt, reply)

    return unittest.mock.patch.object(AttemptSettlement, "_standing", standing)


def lost_never_arrived() -> AbstractContextManager[Any]:
    # Once a defect, too.
    return unittest.mock.patch.object(SharedStore, "may_have_run", return_value=False)


def key_let_go_early() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(KeyBounds, "retained_s", return_value=0.5)


def keys_aged_by_dates() -> AbstractContextManager[Any]:
    # Once so: by the wall clock, while nobody served too.
    return unittest.mock.patch.object(Database, "lived", lambda self, now_s: max(1, int(now_s)))


def key_let_go_while_it_runs() -> AbstractContextManager[Any]:
    original = shared_data.SharedData.expire_keys

    def expire_keys(self: Any, lost: bytes, limit: int) -> int:
        for client in self.clients.values():
            for key in [each for each in client.running if isinstance(each, bytes)]:
                self.ended(client, key)
                self._freed(client, key)
        return original(self, lost, limit)

    return unittest.mock.patch.object(shared_data.SharedData, "expire_keys", expire_keys)


def item_redrawn() -> AbstractContextManager[Any]:
    original = BatchFlow._judge

    def judge(self: BatchFlow, at: int, call: Any, *arguments: Any) -> None:
        original(self, at, call, *arguments)
        if at in self._due and call.key is None and self.calls[at] is call:
            self._session.complete(call)
            self.calls[at] = None

    return unittest.mock.patch.object(BatchFlow, "_judge", judge)


def batch_written_in_part(kind: Any) -> Callable[[], AbstractContextManager[Any]]:
    class InPart(JournalEntry):
        def __init__(self, wanted: Any, *rows: Any, **keywords: Any) -> None:
            super().__init__(wanted, *(rows[:1] if wanted is kind else rows), **keywords)

    return replaced(store, "JournalEntry", InPart)


def taken_over_from_the_living() -> AbstractContextManager[Any]:
    original = SharedStore.__init__

    def init(self: SharedStore, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        # Whoever is not this replica is taken for dead, and what ran for lost.
        self._heartbeat.is_dead = lambda owner: True  # type: ignore[method-assign]

    stack = ExitStack()
    stack.enter_context(unittest.mock.patch.object(SharedStore, "__init__", init))
    stack.enter_context(unittest.mock.patch("rifl._stores.shared.claims.LOST", b""))
    return stack


def unlabelled_means_not_executed() -> AbstractContextManager[Any]:
    original = answer_rules.judge

    def judge(call: Any, answer: AttemptAnswer, *arguments: Any, **keywords: Any) -> Any:
        if answer.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED") and answer.outcome is None:
            answer = answer._replace(outcome=Outcome.NOT_EXECUTED)
        return original(call, answer, *arguments, **keywords)

    return unittest.mock.patch("rifl.core._calling.client_session.judge", judge)


def forwarded_labels_believed() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(
        unittest.mock.patch("rifl._server.context.without_labels", lambda metadata: metadata)
    )
    # Whom a refusal speaks of is looked for where it is not.
    stack.enter_context(unittest.mock.patch("rifl._client.answers.RPC_INFO", "nobody"))
    return stack


def key_not_executed_as_this_attempt_was_not() -> AbstractContextManager[Any]:
    def told(refusal: RiflError, *, keyed: bool) -> Outcome:
        return refusal.outcome

    def unsent(self: CallFlow, sent: bool = False) -> Outcome:
        return Outcome.UNKNOWN if sent else Outcome.NOT_EXECUTED

    stack = ExitStack()
    for owner, name, value in (
        # As a server labels it, as the SDK reads that, and where no server was asked.
        (reply, "told_outcome", told),
        (answer_rules, "NOT_OF_THE_KEY", frozenset()),
        (CallFlow, "_unsent", unsent),
    ):
        stack.enter_context(unittest.mock.patch.object(owner, name, value))
    return stack


def one_runs_word_for_all() -> AbstractContextManager[Any]:
    def given_up(store: Any, call: Any, record: Any, *, ran: bool) -> Any:
        ran = call.ran = ran or call.ran or call.entry.may_have_run(call.call.identity)
        if (pending := store.abandon(call)) is not None:
            yield pending
        return serving.Answer(record, Outcome.UNKNOWN if ran else Outcome.NOT_EXECUTED)

    return unittest.mock.patch.object(serving, "_give_up", given_up)


def refused_means_will_not() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(answer_rules, "MOMENTARY_REASONS", frozenset())


def out_of_time_means_not_executed() -> AbstractContextManager[Any]:
    original = CallFlow._end

    def end(self: CallFlow, action: Any, outcome: Outcome, reason: str) -> Any:
        if outcome is Outcome.UNKNOWN and not reason:
            outcome = Outcome.NOT_EXECUTED
        return original(self, action, outcome, reason)

    return unittest.mock.patch.object(CallFlow, "_end", end)


def resolution_not_recorded() -> AbstractContextManager[Any]:
    def resolve(store: Any, call: Any, policy: Any) -> Any:
        admitted = yield from serving.admit(store, call, policy)
        if isinstance(admitted, serving.Answer):
            return admitted
        if (pending := store.abandon(admitted)) is not None:
            yield pending
        record = serving.refusal_record(serving.NotExecuted("never arrived"))
        return serving.Answer(record, record.outcome)

    return unittest.mock.patch("rifl._server.outcomes_service.resolve", resolve)


def answer_not_kept() -> AbstractContextManager[Any]:
    original = ClientTable.settle

    def settle(self: ClientTable, attempt: Any, record: Any, **keywords: Any) -> bool:
        # As if every answer were one that means that nothing happened.
        return original(self, attempt, None, **keywords)

    return unittest.mock.patch.object(client_table.ClientTable, "settle", settle)
