"""Rules of the design, each broken on purpose, for the simulator to find.

``python tests/chaos/mutations.py`` prints the table of docs/chaos.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import unittest.mock
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.sim import shared_data
from chaos.sim.group_client import GroupPath
from chaos.sim.loop import Process
from chaos.sim.pool import quiet
from chaos.sim.run import simulate
from chaos.sim.schedule import draw
from curp._core import (
    compaction,
    handover,
    read_lease,
    recovery,
    steps,
    witness_change,
    witness_list,
)
from curp._core.group_call import GroupCall, Step
from curp._core.leader import Leader, Speed
from curp._core.poison import Case, Ledger
from curp._core.read_lease import ReadLease
from curp._core.state import GroupState, Witnessed
from curp._core.steps import Sync
from curp._core.witness_table import WitnessMode, WitnessTable, WitnessVerdict
from curp._replica import (
    engine,
    group_store,
    leading,
    lease_keeper,
    snapshot_taker,
    witness_list_keeper,
)
from curp._replica.follower import Follower
from curp._replica.group_store import GroupStore
from curp._replica.lease_storage import LogLeaseStorage
from curp._replica.proposals import Proposals
from curp._replica.survival import Survival
from curp._wire.entries import entry_to_bytes
from curp.client._messages import with_number
from curp.log import _checks as checks
from curp.log._memory import MemoryEngine
from lease_server import _sessions as sessions
from lease_server._sessionbook import SessionBook
from lease_server._storage import MemoryLeaseStorage
from lease_server._table import LeaseTable
from rifl._server import reply
from rifl._stores import codec
from rifl._stores.embedded import EmbeddedStore
from rifl._stores.pending import Pending
from rifl._stores.shared.requests import Ending
from rifl._stores.shared.settlement import AttemptSettlement
from rifl._stores.shared.store import SharedStore
from rifl._stores.sqlite import batches, restored
from rifl._stores.sqlite.database import Database
from rifl._stores.sqlite.journal import Journal
from rifl._stores.sqlite.journal_entries import Entry
from rifl._stores.sqlite.lease_storage import SqliteLeaseStorage
from rifl._stores.sqlite.store import SqliteStore
from rifl.core._calling import answer as answer_rules
from rifl.core._calling.answer import AttemptAnswer
from rifl.core._calling.batch_flow import BatchFlow
from rifl.core._calling.call_flow import CallFlow
from rifl.core._calling.client_session import ClientSession
from rifl.core._calling.stream_attempts import ReceivedResponses
from rifl.core._serving import client_table, serving
from rifl.core._serving.bounds import KeyBounds
from rifl.core._serving.client_table import ClientTable
from rifl.core._serving.later import AllLater
from rifl.core._serving.policy import Kind
from rifl.core._serving.result_tracker import ResultTracker
from rifl.core._serving.streams import RequestStream, ResponseStream
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import Deposed, LeaseExpired, NotRecorded, RiflError
from rifl.core._shared.outcome import Outcome
from tests.chaos.log_mutations import BROKEN

__all__ = ["MUTATIONS", "WITHIN", "Mutation", "seeds_to_find"]

# Each is found in so many seeds of the simulator's default settings, from 1 on.
WITHIN = 150


class Mutation(NamedTuple):
    """A broken rule: what it is, where it stands, and the first seed that shows it."""

    name: str
    rule: str
    kind: str
    broken: Callable[[], AbstractContextManager[Any]]
    seed: int = 0


def _replaced(owner: Any, name: str, value: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: unittest.mock.patch.object(owner, name, value)


def _seq_redrawn() -> AbstractContextManager[Any]:
    def next_attempt(self: ClientSession, call: Any) -> None:
        call.attempt += 1
        if call.key is None:
            self.complete(call)
            call.seq = call.lease.tracker.next()
            call.first_incomplete = call.lease.tracker.first_incomplete
            call.completed = ()

    return unittest.mock.patch.object(ClientSession, "next_attempt", next_attempt)


def _running_not_known() -> AbstractContextManager[Any]:
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


def _acknowledged_looks_new() -> AbstractContextManager[Any]:
    original = ResultTracker.peek

    def peek(self: ResultTracker, seq: int) -> Verdict:
        verdict = original(self, seq)
        return Verdict.NEW if verdict is Verdict.STALE else verdict

    return unittest.mock.patch.object(ResultTracker, "peek", peek)


def _granted_unregistered(storage: type[Any]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: unittest.mock.patch.object(storage, "register", return_value=None)


@contextmanager
def _id_taken_of_another_store() -> Iterator[None]:
    anyones = property(lambda self: 0)
    with ExitStack() as broken:
        broken.enter_context(unittest.mock.patch.object(AttemptAnswer, "store", anyones))
        broken.enter_context(
            unittest.mock.patch.object(ClientSession, "of_another_store", return_value=False)
        )
        yield


@contextmanager
def _answered_unregistered() -> Iterator[None]:
    # Nor is it waited for before the handler starts.
    with (
        unittest.mock.patch.object(Proposals, "registered", return_value=None),
        _speed_without(Speed.UNREGISTERED)(),
    ):
        yield


@contextmanager
def _ids_granted_twice() -> Iterator[None]:
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


def _everybody_alive() -> AbstractContextManager[Any]:
    original = LeaseTable.renew

    def renew(self: LeaseTable, client_id: int, now: float) -> bool:
        return original(self, client_id, now) or client_id < self.next_id

    return unittest.mock.patch.object(LeaseTable, "renew", renew)


def _no_incarnation() -> AbstractContextManager[Any]:
    original = MemoryLeaseStorage.__init__

    def init(self: MemoryLeaseStorage, token_bytes: Any = None) -> None:
        original(self, lambda count: b"\1" * count)

    stack = ExitStack()
    stack.enter_context(unittest.mock.patch.object(MemoryLeaseStorage, "__init__", init))
    stack.enter_context(_everybody_alive())
    return stack


@contextmanager
def _no_intent() -> Iterator[None]:
    with unittest.mock.patch.object(SqliteStore, "start", EmbeddedStore.start):
        yield


def _record_after_reply() -> AbstractContextManager[Any]:
    original = SqliteStore.finish

    def finish(self: SqliteStore, attempt: Any, record: Any) -> None:
        original(self, attempt, record)

    return unittest.mock.patch.object(SqliteStore, "finish", finish)


def _acknowledgement_not_durable() -> AbstractContextManager[Any]:
    original = Journal.acknowledge

    def acknowledge(
        self: Journal, client_id: int, first: int, completed: bytes, released: list[int]
    ) -> None:
        original(self, client_id, 1, b"", released)

    return unittest.mock.patch.object(Journal, "acknowledge", acknowledge)


def _intents_forgotten() -> AbstractContextManager[Any]:
    def close_intents(self: Database, record: Any, lived_s: int) -> int:
        return int(self._writer.execute("DELETE FROM rifl_call WHERE record IS NULL").rowcount)

    return unittest.mock.patch.object(Database, "close_intents", close_intents)


def _record_given_up() -> AbstractContextManager[Any]:
    original = Entry.__init__

    def init(self: Entry, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **{**keywords, "patient": False})

    return unittest.mock.patch.object(Entry, "__init__", init)


def _closed_session_reopened() -> AbstractContextManager[Any]:
    original = SessionBook.open

    def open_(self: SessionBook, name: str, peer: bytes, *arguments: Any, **more: Any) -> Any:
        with self._lock:
            row = self._table.get(peer, name)
            if row is not None and row.state is not sessions.SessionState.OPEN:
                self._table._forget(row)
                self._storage.forget_session(row.client_id)
        return original(self, name, peer, *arguments, **more)

    return unittest.mock.patch.object(SessionBook, "open", open_)


def _closed_session_served() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(
        sessions.SessionTable, "alive", lambda self, client_id, now: client_id in self._rows
    )


def _session_opens_by_its_name() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(sessions.SessionTable, "require_owner", return_value=None)


def _unused_session_forgotten_in_use() -> AbstractContextManager[Any]:
    original = sessions.SessionTable.renew

    def renew(self: sessions.SessionTable, client_id: int, now: float, **_: Any) -> bool:
        return original(self, client_id, now, used=False)

    return unittest.mock.patch.object(sessions.SessionTable, "renew", renew)


def _late_finisher_not_fenced() -> AbstractContextManager[Any]:
    original = shared_data.SharedData.is_current

    def is_current(self: Any, call: Any, token: bytes, kind: Any) -> bool:
        return True

    del original
    return unittest.mock.patch.object(shared_data.SharedData, "is_current", is_current)


def _late_answer_sent() -> AbstractContextManager[Any]:
    # Once a defect, which the simulator found: kept as what it must find again.
    original = AttemptSettlement._standing

    def standing(self: AttemptSettlement, attempt: Any, reply: Any) -> Any:
        if reply.ending is Ending.ACKNOWLEDGED:
            return None
        return original(self, attempt, reply)

    return unittest.mock.patch.object(AttemptSettlement, "_standing", standing)


def _lost_never_arrived() -> AbstractContextManager[Any]:
    # Once a defect, too.
    return unittest.mock.patch.object(SharedStore, "may_have_run", return_value=False)


def _key_let_go_early() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(KeyBounds, "retained_s", return_value=0.5)


def _keys_aged_by_dates() -> AbstractContextManager[Any]:
    # Once so: by the wall clock, while nobody served too.
    return unittest.mock.patch.object(
        Database, "lived", lambda self, now_s: (1, max(1, int(now_s)))
    )


def _key_let_go_while_it_runs() -> AbstractContextManager[Any]:
    original = shared_data.SharedData.expire_keys

    def expire_keys(self: Any, lost: bytes, limit: int) -> int:
        for client in self.clients.values():
            for key in [each for each in client.running if isinstance(each, bytes)]:
                self.ended(client, key)
                self._freed(client, key)
        return original(self, lost, limit)

    return unittest.mock.patch.object(shared_data.SharedData, "expire_keys", expire_keys)


def _expired_never_ran() -> AbstractContextManager[Any]:
    # Once a defect, too.
    original = AttemptSettlement._standing

    def standing(self: AttemptSettlement, attempt: Any, reply: Any) -> Any:
        if reply.ending is Ending.GONE:
            raise LeaseExpired("expired while the call ran")
        return original(self, attempt, reply)

    return unittest.mock.patch.object(AttemptSettlement, "_standing", standing)


def _item_redrawn() -> AbstractContextManager[Any]:
    original = BatchFlow._judge

    def judge(self: BatchFlow, at: int, call: Any, *arguments: Any) -> None:
        original(self, at, call, *arguments)
        if at in self._due and call.key is None and self.calls[at] is call:
            self._session.complete(call)
            self.calls[at] = None

    return unittest.mock.patch.object(BatchFlow, "_judge", judge)


def _batch_written_in_part(kind: Any) -> Callable[[], AbstractContextManager[Any]]:
    def entry(wanted: Any, *rows: Any, **keywords: Any) -> Entry:
        return Entry(wanted, *(rows[:1] if wanted is kind else rows), **keywords)

    return _replaced(batches, "Entry", entry)


def _taken_over_from_the_living() -> AbstractContextManager[Any]:
    original = SharedStore.__init__

    def init(self: SharedStore, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        # Whoever is not this replica is taken for dead, and what ran for lost.
        self._heartbeat.is_dead = lambda owner: True  # type: ignore[method-assign]

    stack = ExitStack()
    stack.enter_context(unittest.mock.patch.object(SharedStore, "__init__", init))
    stack.enter_context(unittest.mock.patch("rifl._stores.shared.claims.LOST", b""))
    return stack


def _unlabelled_means_not_executed() -> AbstractContextManager[Any]:
    original = answer_rules.judge

    def judge(call: Any, answer: AttemptAnswer, *arguments: Any, **keywords: Any) -> Any:
        if answer.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED") and answer.outcome is None:
            answer = answer._replace(outcome=Outcome.NOT_EXECUTED)
        return original(call, answer, *arguments, **keywords)

    return unittest.mock.patch("rifl.core._calling.client_session.judge", judge)


def _forwarded_labels_believed() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(
        unittest.mock.patch("chaos.sim.server.without_labels", lambda metadata: metadata)
    )
    # Whom a refusal speaks of is looked for where it is not.
    stack.enter_context(unittest.mock.patch("rifl._client.answers.RPC_INFO", "nobody"))
    return stack


def _key_not_executed_as_this_attempt_was_not() -> AbstractContextManager[Any]:
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


def _one_runs_word_for_all() -> AbstractContextManager[Any]:
    def given_up(store: Any, call: Any, record: Any, *, ran: bool) -> Any:
        ran = call.ran = ran or call.ran or call.entry.may_have_run(call.call.identity)
        if (pending := store.abandon(call)) is not None:
            yield pending
        return serving.Answer(record, Outcome.UNKNOWN if ran else Outcome.NOT_EXECUTED)

    return unittest.mock.patch.object(serving, "_give_up", given_up)


def _refused_means_will_not() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(answer_rules, "MOMENTARY_REASONS", frozenset())


def _expired_always_sent_anew() -> AbstractContextManager[Any]:
    original = answer_rules.judge

    def judge(call: Any, answer: AttemptAnswer, *arguments: Any, **keywords: Any) -> Any:
        if answer.reason == "LEASE_EXPIRED" and call.key is None:
            return answer_rules.Judgement(answer_rules.Step.NEW_IDENTITY)
        return original(call, answer, *arguments, **keywords)

    return unittest.mock.patch("rifl.core._calling.client_session.judge", judge)


def _out_of_time_means_not_executed() -> AbstractContextManager[Any]:
    original = CallFlow._end

    def end(self: CallFlow, action: Any, outcome: Outcome, reason: str) -> Any:
        if outcome is Outcome.UNKNOWN and not reason:
            outcome = Outcome.NOT_EXECUTED
        return original(self, action, outcome, reason)

    return unittest.mock.patch.object(CallFlow, "_end", end)


def _resolution_not_recorded() -> AbstractContextManager[Any]:
    def resolve(store: Any, call: Any, policy: Any) -> Any:
        admitted = yield from serving.admit(store, call, policy)
        if isinstance(admitted, serving.Answer):
            return admitted
        if (pending := store.abandon(admitted)) is not None:
            yield pending
        record = serving.refusal_record(serving.NotExecuted("never arrived"))
        return serving.Answer(record, record.outcome)

    return unittest.mock.patch("chaos.sim.server.resolve", resolve)


def _removed_while_running() -> AbstractContextManager[Any]:
    def drop(self: ClientTable, client_ids: Any) -> list[int]:
        gone = list(client_ids)
        for client_id in gone:
            self._remove(client_id)
        return gone

    stack = ExitStack()
    stack.enter_context(unittest.mock.patch.object(ClientTable, "drop", drop))
    stack.enter_context(_everybody_alive())
    return stack


def _answer_not_kept() -> AbstractContextManager[Any]:
    original = ClientTable.settle

    def settle(self: ClientTable, attempt: Any, record: Any, **keywords: Any) -> bool:
        # As if every answer were one that means that nothing happened.
        return original(self, attempt, None, **keywords)

    return unittest.mock.patch.object(client_table.ClientTable, "settle", settle)


# -- streams ------------------------------------------------------------------------------


def _broken_stream_repeated() -> AbstractContextManager[Any]:
    original = serving._judge

    def judge(attempt: Any, result: Any) -> Any:
        if result.broken:
            attempt.policy = replace(attempt.policy, kind=Kind.IDEMPOTENT)
        return original(attempt, result)

    return unittest.mock.patch.object(serving, "_judge", judge)


def _raising_means_rolled_back() -> AbstractContextManager[Any]:
    original = serving._judge

    def judge(attempt: Any, result: Any) -> Any:
        return original(attempt, result._replace(undone=True))

    return unittest.mock.patch.object(serving, "_judge", judge)


def _half_a_stream_believed() -> AbstractContextManager[Any]:
    def exhausted(self: RequestStream) -> None:
        # As if an end needed neither a marker nor a payload.
        self.ended = True

    return unittest.mock.patch.object(RequestStream, "exhausted", exhausted)


def _rest_from_the_wrong_place() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(
        ReceivedResponses, "asked_after", lambda self: max(self.count - 1, 0)
    )


def _recorded_before_the_last_message() -> AbstractContextManager[Any]:
    original = ResponseStream.result

    def result(self: ResponseStream, live: Any) -> Any:
        self.kept = self.kept[:-1]
        return original(self, live)

    return unittest.mock.patch.object(ResponseStream, "result", result)


def _another_run_sends_all() -> AbstractContextManager[Any]:
    original = ResponseStream.add

    def add(self: ResponseStream, message: bytes) -> bool:
        original(self, message)
        return self.here

    return unittest.mock.patch.object(ResponseStream, "add", add)


def _long_stream_kept_in_part() -> AbstractContextManager[Any]:
    original = ResponseStream.result

    def result(self: ResponseStream, live: Any) -> Any:
        self.overflown = False
        return original(self, live)

    return unittest.mock.patch.object(ResponseStream, "result", result)


# -- groups (DESIGN §7) ------------------------------------------------------------------


def _final_without_witnesses() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(GroupCall, "_judge", return_value=Step.FINAL)


def _conflicts_ignored_by_witnesses() -> AbstractContextManager[Any]:
    original = WitnessTable._judge

    def judge(self: WitnessTable, *arguments: Any) -> WitnessVerdict:
        verdict = original(self, *arguments)
        return WitnessVerdict.ACCEPTED if verdict is WitnessVerdict.CONFLICT else verdict

    return unittest.mock.patch.object(WitnessTable, "_judge", judge)


def _witness_not_frozen() -> AbstractContextManager[Any]:
    original = WitnessTable._judge

    def judge(self: WitnessTable, *arguments: Any) -> WitnessVerdict:
        verdict = original(self, *arguments)
        return WitnessVerdict.ACCEPTED if verdict is WitnessVerdict.FROZEN else verdict

    return unittest.mock.patch.object(WitnessTable, "_judge", judge)


def _restarted_witness_believed() -> AbstractContextManager[Any]:
    def may_freeze(self: WitnessTable, group: str, configuration: int) -> WitnessVerdict:
        if self.mode is WitnessMode.UNLISTED:
            # It says that it holds nothing.
            self.group, self.configuration = group, configuration
            self.mode = WitnessMode.FROZEN
        return WitnessVerdict.ACCEPTED

    return unittest.mock.patch.object(WitnessTable, "may_freeze", may_freeze)


def _groups_by_name() -> AbstractContextManager[Any]:
    def serves(self: WitnessTable, group: str) -> bool:
        return group.partition("@")[0] == self.group.partition("@")[0]

    return unittest.mock.patch.object(WitnessTable, "_serves", serves)


def _late_start_believed() -> AbstractContextManager[Any]:
    def may_freeze(self: WitnessTable, group: str, configuration: int) -> WitnessVerdict:
        if self.mode is WitnessMode.UNLISTED or configuration < self.configuration:
            return WitnessVerdict.OTHER_CONFIGURATION
        # It was started under a lower number, in this life: it says that it holds nothing.
        self.configuration = configuration
        return WitnessVerdict.ACCEPTED

    return unittest.mock.patch.object(WitnessTable, "may_freeze", may_freeze)


def _speed_without(*ignored: Speed) -> Callable[[], AbstractContextManager[Any]]:
    original = Leader._speed

    def speed(self: Leader, keys: Any, wish: Any) -> Speed:
        found = original(self, keys, wish)
        return Speed.FAST if found in ignored else found

    return _replaced(Leader, "_speed", speed)


def _skipped_under_a_number() -> AbstractContextManager[Any]:
    def unrecorded(self: GroupPath, header: tuple[str, bytes]) -> tuple[str, bytes]:
        view = self.knowledge.view
        return header if view is None else (header[0], with_number(header[1], view.number_field))

    return unittest.mock.patch.object(GroupPath, "unrecorded", unrecorded)


def _nothing_replayed() -> AbstractContextManager[Any]:
    original = recovery._freeze_one

    def freeze_one(*arguments: Any) -> Any:
        found = yield from original(*arguments)
        return found and (found[0], [])

    return unittest.mock.patch.object(recovery, "_freeze_one", freeze_one)


def _replay_not_filtered() -> AbstractContextManager[Any]:
    original = GroupState.witnessed

    def witnessed(self: GroupState, call: Any) -> Witnessed:
        found = original(self, call)
        return Witnessed.FRESH if found is Witnessed.KNOWN else found

    return unittest.mock.patch.object(GroupState, "witnessed", witnessed)


def _other_leader_syncs() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(GroupCall, "sync_answered", return_value=Step.FINAL)


def _waiting_answers_kept() -> AbstractContextManager[Any]:
    original = Pending.fail

    def fail(self: Pending, error: Exception) -> None:
        if isinstance(error, Deposed):
            self.succeed()
        else:
            original(self, error)

    return unittest.mock.patch.object(Pending, "fail", fail)


def _deaths_not_counted() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(Ledger, "died", lambda self, *arguments, **more: self)


def _stepped_down_has_died() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(Survival, "stepped_down")


@contextmanager
def _suspects_set_aside() -> Iterator[None]:
    """What ran when a leader died has no answer, whether all witnesses held it or not."""

    def never(*arguments: Any) -> Iterator[Any]:
        return False
        yield

    with (
        unittest.mock.patch.object(recovery, "_may_be_final", never),
        unittest.mock.patch.object(Case, "condemned", return_value=True),
    ):
        yield


def _versions_not_logged() -> AbstractContextManager[Any]:
    original = GroupStore._write

    def write(self: GroupStore, *arguments: Any) -> Any:
        write = original(self, *arguments)
        entry = write.entry._replace(application_version=0)
        return write._replace(entry=entry, body=entry_to_bytes(entry))

    return unittest.mock.patch.object(GroupStore, "_write", write)


def _newer_leader_saves() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(GroupState, "may_save", return_value=True)


def _older_version_goes_on() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(Follower, "_require")


def _read_lease_for_ever() -> AbstractContextManager[Any]:
    return unittest.mock.patch.multiple(
        ReadLease, valid=lambda self, now: True, over=lambda self, now: False
    )


def _read_lease_without_margin() -> AbstractContextManager[Any]:
    original = ReadLease.__init__

    def init(self: ReadLease, term_s: float, *, drift: float = 0.05) -> None:
        original(self, term_s, drift=1e-9)

    return unittest.mock.patch.object(ReadLease, "__init__", init)


def _read_lease_from_the_reply() -> AbstractContextManager[Any]:
    original = read_lease.keep_lease

    def keep_lease(lease: ReadLease, term_s: float, clock: Any, over: Any) -> Any:
        class FromTheReply:
            end, over = lease.end, lease.over

            def renewed(self, sent_at: float) -> None:
                lease.renewed(clock())

        return original(FromTheReply(), term_s, clock, over)  # type: ignore[arg-type]

    return unittest.mock.patch.object(lease_keeper, "keep_lease", keep_lease)


def _lease_ended_before_reads() -> AbstractContextManager[Any]:
    def hand_over(clock: Any) -> Any:
        yield handover.EndLease()
        yield steps.Wait("whoever reads here", 0.5)
        yield handover.RefuseCalls()
        yield Sync()
        yield handover.StepDown()

    def stop(self: lease_keeper.LeaseKeeper) -> Any:
        # What is read by the lease goes on until the leadership has ended.
        self._over.end()
        return self._loop.ended()

    stack = ExitStack()
    stack.enter_context(unittest.mock.patch.object(leading, "hand_over", hand_over))
    stack.enter_context(unittest.mock.patch.object(lease_keeper.LeaseKeeper, "stop", stop))
    return stack


def _unlogged_read() -> AbstractContextManager[Any]:
    return unittest.mock.patch.object(Leader, "conflict", return_value=0)


def _collected_before_synced() -> AbstractContextManager[Any]:
    original = WitnessTable.record

    def record(self: WitnessTable, *arguments: Any) -> WitnessVerdict:
        verdict = original(self, *arguments)
        held, self._calls, self._keys = self._calls, {}, set()
        self._keyless = self._bytes = 0
        del held
        return verdict

    return unittest.mock.patch.object(WitnessTable, "record", record)


def _refusal_not_logged() -> AbstractContextManager[Any]:
    # Kept on both sides: the leader does not say it, neither of a call that it refuses nor of a
    # client whose removal is not in the log, and the client does not believe it.
    original = GroupCall.leader_answered

    def leader_answered(self: GroupCall, answer: Any) -> Step:
        step = original(self, answer)
        return Step.FINAL if step in (Step.UNKNOWN, Step.AGAIN) else step

    stack = ExitStack()
    for owner, name, value in (
        (GroupCall, "leader_answered", leader_answered),
        (group_store, "not_by_log", lambda error, call: error),
        (engine, "not_by_log", lambda error, call: error),
        (Proposals, "known", lambda self, client_id: False),
    ):
        stack.enter_context(unittest.mock.patch.object(owner, name, value))
    return stack


@contextmanager
def _refused_by_a_group_means_will_not() -> Iterator[None]:
    # What a leader refuses for the moment, the client takes for unknown by another rule, too.
    with _refusal_not_logged(), _refused_means_will_not():
        yield


def _rule_without(
    module: Any, name: str, **answers: Any
) -> Callable[[], AbstractContextManager[Any]]:
    """Have a rule believe that steps were carried out, by their names, with these answers."""
    original = getattr(module, name)

    def rule(*arguments: Any, **keywords: Any) -> Any:
        steps, answer = original(*arguments, **keywords), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            kind = type(step).__name__
            answer = answers[kind] if kind in answers else (yield step)

    return _replaced(module, name, rule)


def _unnumbered_list() -> AbstractContextManager[Any]:
    def change(configuration: int, wanted: Any) -> Any:
        before = yield witness_change.HoldBack()
        yield Sync(before)
        started = yield from witness_list.start_witnesses(tuple(wanted), configuration)
        serving = witness_list.WitnessList(configuration, started, True, tuple(wanted))
        yield witness_list.Publish(serving)
        yield witness_change.Serve(serving)
        return serving

    return unittest.mock.patch.object(witness_list_keeper, "change_witnesses", change)


def _other_numbers_accepted() -> AbstractContextManager[Any]:
    original = WitnessTable._judge

    def judge(self: WitnessTable, configuration: int, *arguments: Any) -> WitnessVerdict:
        return original(self, self.configuration, *arguments)

    return unittest.mock.patch.object(WitnessTable, "_judge", judge)


def _snapshot_without_records() -> AbstractContextManager[Any]:
    original = GroupState._dump_client

    def dump(self: GroupState, client_id: int) -> Any:
        return original(self, client_id)._replace(calls=())

    return unittest.mock.patch.object(GroupState, "_dump_client", dump)


def _snapshot_without_acknowledgements() -> AbstractContextManager[Any]:
    original = GroupState._dump_client

    def dump(self: GroupState, client_id: int) -> Any:
        return original(self, client_id)._replace(first_incomplete=1, completed=())

    return unittest.mock.patch.object(GroupState, "_dump_client", dump)


def _trimmed_before_saved() -> AbstractContextManager[Any]:
    def compact(kept_behind: int) -> Any:
        if not (yield compaction.Halt()):
            return None
        yield Sync()
        lsn = yield compaction.Copy()
        yield compaction.GoOn()
        if lsn is None:
            return None
        yield compaction.Trim(lsn)
        yield compaction.Save(lsn)
        return lsn

    stack = ExitStack()
    stack.enter_context(unittest.mock.patch.object(snapshot_taker, "compact", compact))
    # The engine would refuse it, too.
    stack.enter_context(unittest.mock.patch.object(checks, "check_trim"))
    return stack


def _batch_answered_first() -> AbstractContextManager[Any]:
    original = GroupStore.finish_all

    def finish_all(self: GroupStore, *arguments: Any) -> Any:
        replies = original(self, *arguments).replies  # type: ignore[union-attr]  # a AllLater
        return [reply if isinstance(reply, Exception) else None for reply in replies]

    return unittest.mock.patch.object(GroupStore, "finish_all", finish_all)


def _batch_answered_by_its_first() -> AbstractContextManager[Any]:
    original = GroupStore.finish_all

    def finish_all(self: GroupStore, *arguments: Any) -> Any:
        replies = original(self, *arguments).replies  # type: ignore[union-attr]  # a AllLater
        return AllLater([replies[0], *(None for _ in replies[1:])])

    return unittest.mock.patch.object(GroupStore, "finish_all", finish_all)


def _turn_for_each_of_a_batch() -> AbstractContextManager[Any]:
    def start_all(self: GroupStore, attempts: Any) -> Any:
        return AllLater([self.start(attempt) for attempt in attempts])

    return unittest.mock.patch.object(GroupStore, "start_all", start_all)


def _torn_append_recognised() -> AbstractContextManager[Any]:
    original = MemoryEngine.append

    def append(self: MemoryEngine, entries: Any, **keywords: Any) -> int:
        expected, name = keywords["expected_tail"], keywords["append_id"]
        if self._appended(expected, name) is None:
            half = len(entries) // 2
            if half:
                # Here its reply, or its sender, may be lost.
                original(self, entries[:half], **{**keywords, "metadata": None})
                keywords["expected_tail"] += half
            original(self, entries[half:], **keywords)
        return int(expected + len(entries))

    return unittest.mock.patch.object(MemoryEngine, "append", append)


MUTATIONS = (
    Mutation("id redrawn on retry", "§3: every attempt, one identity", "memory", _seq_redrawn),
    Mutation("answer not kept", "§4.2: completed, replayed", "memory", _answer_not_kept),
    Mutation("running call not known", "§4.2: duplicates wait", "memory", _running_not_known),
    Mutation("acknowledged call looks new", "§4.3: STALE", "memory", _acknowledged_looks_new),
    Mutation("dead client served", "§4.5: known and alive", "memory", _everybody_alive),
    Mutation("ids without incarnation", "§5: memory ids", "memory", _no_incarnation),
    Mutation(
        "client removed while its call runs", "§4: removing", "memory", _removed_while_running
    ),
    Mutation(
        "forwarded labels believed", "§3: of one identity", "memory", _forwarded_labels_believed
    ),
    Mutation("a refused call may come late", "§3: will not", "sqlite", _refused_means_will_not),
    Mutation("no intent", "§4.6: intent durable first", "sqlite", _no_intent),
    Mutation("intents forgotten", "§4: intent of the dead", "sqlite", _intents_forgotten),
    Mutation("record after reply", "§4.7: durable, then told", "sqlite", _record_after_reply),
    Mutation(
        "granted client unknown",
        "§5: before its id is told",
        "sqlite",
        _granted_unregistered(SqliteLeaseStorage),
    ),
    Mutation(
        "id taken of another store",
        "§3: two stores, one address",
        "memory",
        _id_taken_of_another_store,
    ),
    Mutation(
        "restored store goes on as it was",
        "§5: a new incarnation",
        "sqlite",
        _replaced(restored, "begin_anew", lambda connection, store_id: None),
    ),
    Mutation(
        "restored store grants ids again", "§3, §5: drawn, and seeds", "sqlite", _ids_granted_twice
    ),
    Mutation(
        "copied machines grant one id",
        "§5: drawn",
        "memory",
        _replaced(MemoryLeaseStorage, "random_bits", 0),
    ),
    Mutation("record given up", "§4.7: retried for ever", "sqlite", _record_given_up),
    Mutation(
        "record deleted before its acknowledgement is durable",
        "§4: one transaction",
        "sqlite",
        _acknowledgement_not_durable,
    ),
    Mutation("resolution not recorded", "§4: never will", "memory", _resolution_not_recorded),
    Mutation("closed session reopened", "§5: never a new id", "spark", _closed_session_reopened),
    Mutation("closed session served", "§5, §8: zombies refused", "spark", _closed_session_served),
    Mutation("session opens by its name", "§5: by its secret", "spark", _session_opens_by_its_name),
    Mutation(
        "session forgotten in use",
        "§5: unused is without a call",
        "spark",
        _unused_session_forgotten_in_use,
    ),
    Mutation(
        "late finisher not fenced", "§6: attempt token", "replicas", _late_finisher_not_fenced
    ),
    Mutation(
        "late answer to an acknowledged call",
        "§4: duplicates alike",
        "replicas",
        _late_answer_sent,
    ),
    Mutation(
        "forgotten record means not executed",
        "§4: known to be rolled back",
        "sqlite",
        _replaced(NotRecorded, "outcome", Outcome.NOT_EXECUTED),
    ),
    Mutation("one run's word for all", "§3: only what is known", "spark", _one_runs_word_for_all),
    Mutation(
        "raising means rolled back",
        "§4: known to be rolled back",
        "replicas",
        _raising_means_rolled_back,
    ),
    Mutation(
        "raising means rolled back, by one server",
        "§4: known to be rolled back",
        "sqlite",
        _raising_means_rolled_back,
    ),
    Mutation(
        "raising means rolled back, of a session's row",
        "§4: known to be rolled back",
        "spark",
        _raising_means_rolled_back,
    ),
    Mutation("broken stream run again as plain", "§1: plain", "memory", _broken_stream_repeated),
    Mutation(
        "half a stream believed", "§4.2: the whole payload", "memory", _half_a_stream_believed
    ),
    Mutation(
        "rest of a stream from the wrong place",
        "§4: messages it lacks",
        "memory",
        _rest_from_the_wrong_place,
    ),
    Mutation(
        "stream recorded before its last message",
        "§4: recorded whole",
        "memory",
        _recorded_before_the_last_message,
    ),
    Mutation(
        "long stream kept in part", "§3: RESPONSE_TOO_LARGE", "memory", _long_stream_kept_in_part
    ),
    Mutation(
        "another run sends all messages", "§4: messages it lacks", "sqlite", _another_run_sends_all
    ),
    Mutation("key let go early", "§3: kept for a stated time", "sqlite", _key_let_go_early),
    Mutation(
        "a key is not executed because this attempt was not",
        "§3: others share it",
        "replicas",
        _key_not_executed_as_this_attempt_was_not,
    ),
    Mutation("keys aged by dates", "§5: time lived through", "sqlite", _keys_aged_by_dates),
    Mutation(
        "key let go while its call runs", "§4: retention", "replicas", _key_let_go_while_it_runs
    ),
    Mutation("expired means never ran", "§3: only what is known", "replicas", _expired_never_ran),
    Mutation(
        "item's id redrawn on retry", "§3: every attempt, one identity", "memory", _item_redrawn
    ),
    Mutation(
        "batch recorded in part",
        "§4: records in one group",
        "sqlite",
        _batch_written_in_part(Entry.RECORD),
    ),
    Mutation(
        "intents of a batch in part",
        "§4: intents in one group",
        "sqlite",
        _batch_written_in_part(Entry.INTENT),
    ),
    Mutation("lost means never arrived", "§3: only what is known", "replicas", _lost_never_arrived),
    Mutation("taken over from the living", "§6: a guess", "replicas", _taken_over_from_the_living),
    Mutation(
        "unlabelled means not executed",
        "§3: only what is known",
        "memory",
        _unlabelled_means_not_executed,
    ),
    Mutation(
        "deadline means not executed",
        "§3: everything else is unknown",
        "memory",
        _out_of_time_means_not_executed,
    ),
    Mutation("expired always sent anew", "§3: attempt 1 only", "memory", _expired_always_sent_anew),
    Mutation(
        "final without witnesses",
        "§7.1: log, or all witnesses",
        "curp",
        _final_without_witnesses,
    ),
    Mutation(
        "witness accepts conflicts",
        "§7.2: no shared key",
        "curp",
        _conflicts_ignored_by_witnesses,
    ),
    Mutation("witness not frozen", "§7.2: freezing", "curp", _witness_not_frozen),
    Mutation("restarted witness believed", "§7.2: unlisted", "curp", _restarted_witness_believed),
    Mutation("groups told apart by name", "§7: the log's id", "curp", _groups_by_name),
    Mutation("late start believed", "§7.2: its own number", "curp", _late_start_believed),
    Mutation(
        "answered before a conflict is logged",
        "§7.3: commutes",
        "curp",
        _speed_without(Speed.CONFLICT),
    ),
    Mutation(
        "granted before its client is logged",
        "§5: before its id is told",
        "curp",
        _granted_unregistered(LogLeaseStorage),
    ),
    Mutation(
        "answered before its client is logged",
        "§7.3: registration",
        "curp",
        _answered_unregistered,
    ),
    Mutation(
        "other keys on the witnesses believed",
        "§7.3: commutes",
        "curp",
        _speed_without(Speed.OTHER_KEYS),
    ),
    Mutation("waiting answers kept", "§7.4: steps down", "curp", _waiting_answers_kept),
    Mutation("witness not replayed", "§7.5: recovery", "curp", _nothing_replayed),
    Mutation("replay not filtered", "§7.6: trackers", "curp", _replay_not_filtered),
    Mutation("deaths not counted", "§7.12: beyond a bound", "curp", _deaths_not_counted),
    Mutation("who stepped down has died", "§7.12: lives on", "curp", _stepped_down_has_died),
    Mutation("suspects set aside", "§7.12: cannot have been", "curp", _suspects_set_aside),
    Mutation("versions not logged", "§7: the log's answer", "curp", _versions_not_logged),
    Mutation(
        "a newer leader saves a snapshot", "§7: saves no snapshot", "curp", _newer_leader_saves
    ),
    Mutation("older version goes on", "§7: stops applying", "curp", _older_version_goes_on),
    Mutation("another leader's sync", "§7.9: configuration", "curp", _other_leader_syncs),
    Mutation("read lease for ever", "§7.10: reads", "curp", _read_lease_for_ever),
    Mutation("read lease without its margin", "§7.10: drift", "curp", _read_lease_without_margin),
    Mutation(
        "read lease counted from the reply", "§7.10: valid", "curp", _read_lease_from_the_reply
    ),
    Mutation(
        "lease ended before its reads stop", "§7.10: waits out", "curp", _lease_ended_before_reads
    ),
    Mutation("read of what is not logged", "§7.10: synced", "curp", _unlogged_read),
    Mutation("configuration unchecked", "§7.11: number", "curp", _speed_without(Speed.NO_NUMBER)),
    Mutation(
        "a call that skipped its records is answered before its append",
        "§7.1: no number",
        "curp",
        _skipped_under_a_number,
    ),
    Mutation(
        "witness drops what is not synced",
        "§7.12: collection",
        "curp",
        _collected_before_synced,
    ),
    Mutation("refusal not logged", "§7.13: not executed", "curp", _refusal_not_logged),
    Mutation(
        "a call refused by a group may come late",
        "§7.13; §3: will not",
        "curp",
        _refused_by_a_group_means_will_not,
    ),
    Mutation(
        "records of other numbers accepted", "§7.2: in force", "curp", _other_numbers_accepted
    ),
    Mutation(
        "snapshot without completion records",
        "§7.8: unacknowledged",
        "curp",
        _snapshot_without_records,
    ),
    Mutation(
        "snapshot without acknowledgements",
        "§7.8: trackers",
        "curp",
        _snapshot_without_acknowledgements,
    ),
    Mutation(
        "snapshot while calls run",
        "§7.8: up to P only",
        "curp",
        _rule_without(snapshot_taker, "compact", Halt=True, GoOn=None),
    ),
    Mutation(
        "snapshot of what is not logged",
        "§7.8: up to P only",
        "curp",
        _rule_without(snapshot_taker, "compact", Sync=None),
    ),
    Mutation("trimmed before it is saved", "§7.8: covered", "curp", _trimmed_before_saved),
    Mutation(
        "list changed before its answers are logged",
        "§7.11: synced",
        "curp",
        _rule_without(witness_list_keeper, "change_witnesses", Sync=None),
    ),
    Mutation(
        "number ended before its answers are logged",
        "§7.5: ended",
        "curp",
        _rule_without(leading, "hand_over", Sync=None),
    ),
    Mutation("list changed under the same number", "§7.11: number", "curp", _unnumbered_list),
    Mutation("batch answered before it is logged", "§7.1: a batch", "curp", _batch_answered_first),
    Mutation(
        "batch answered when its first call is logged",
        "§7.1: a batch",
        "curp",
        _batch_answered_by_its_first,
    ),
    Mutation(
        "a turn for each call of a batch", "§4: end together", "curp", _turn_for_each_of_a_batch
    ),
    Mutation(
        "another number's writer not refused",
        "§7: conditional",
        "curp",
        _replaced(checks, "require_configuration", lambda configuration, current: None),
    ),
    Mutation("torn append recognised", "§7: one atomic step", "curp", _torn_append_recognised),
)


# The first seed of default settings that shows each.
_SEEDS = {
    "id redrawn on retry": 3,
    "answer not kept": 1,
    "running call not known": 1,
    "acknowledged call looks new": 1,
    "dead client served": 4,
    "ids without incarnation": 4,
    "client removed while its call runs": 4,
    "no intent": 4,
    "intents forgotten": 3,
    "record after reply": 6,
    "record given up": 37,
    "record deleted before its acknowledgement is durable": 11,
    "resolution not recorded": 34,
    "closed session reopened": 1,
    "closed session served": 1,
    "late finisher not fenced": 11,
    "late answer to an acknowledged call": 26,
    "key let go early": 1,
    "a key is not executed because this attempt was not": 1,
    "keys aged by dates": 9,
    "key let go while its call runs": 1,
    "expired means never ran": 74,
    "item's id redrawn on retry": 1,
    "batch recorded in part": 4,
    "intents of a batch in part": 4,
    "lost means never arrived": 2,
    "taken over from the living": 1,
    "unlabelled means not executed": 1,
    "deadline means not executed": 1,
    "expired always sent anew": 7,
    "final without witnesses": 8,
    "witness accepts conflicts": 8,
    "witness not frozen": 8,
    "late start believed": 141,
    "groups told apart by name": 2,
    "number ended before its answers are logged": 10,
    "restarted witness believed": 46,
    "answered before a conflict is logged": 77,
    "answered before its client is logged": 2,
    "other keys on the witnesses believed": 11,
    "waiting answers kept": 3,
    "witness not replayed": 1,
    "replay not filtered": 1,
    "deaths not counted": 5,
    "who stepped down has died": 7,
    "suspects set aside": 5,
    "versions not logged": 5,
    "a newer leader saves a snapshot": 55,
    "older version goes on": 105,
    "another leader's sync": 8,
    "read lease for ever": 6,
    "read lease without its margin": 6,
    "read lease counted from the reply": 18,
    "lease ended before its reads stop": 16,
    "read of what is not logged": 20,
    "configuration unchecked": 2,
    "a call that skipped its records is answered before its append": 78,
    "witness drops what is not synced": 1,
    "refusal not logged": 29,
    "a call refused by a group may come late": 1,
    "records of other numbers accepted": 17,
    "snapshot without completion records": 9,
    "snapshot without acknowledgements": 11,
    "snapshot while calls run": 17,
    "snapshot of what is not logged": 2,
    "trimmed before it is saved": 19,
    "list changed before its answers are logged": 72,
    "list changed under the same number": 23,
    "batch answered before it is logged": 17,
    "batch answered when its first call is logged": 32,
    "a turn for each call of a batch": 2,
    "another number's writer not refused": 1,
    "torn append recognised": 77,
    "broken stream run again as plain": 12,
    "forgotten record means not executed": 1,
    "one run's word for all": 42,
    "raising means rolled back": 9,
    "half a stream believed": 3,
    "rest of a stream from the wrong place": 3,
    "stream recorded before its last message": 3,
    "long stream kept in part": 3,
    "another run sends all messages": 1,
    "a refused call may come late": 10,
    "granted client unknown": 3,
    "granted before its client is logged": 7,
    "id taken of another store": 7,
    "restored store goes on as it was": 2,
    "restored store grants ids again": 44,
    "copied machines grant one id": 33,
    "forwarded labels believed": 1,
    "session opens by its name": 1,
    "raising means rolled back, of a session's row": 1,
    "raising means rolled back, by one server": 1,
    "session forgotten in use": 15,
}
MUTATIONS = (
    *(each._replace(seed=_SEEDS.get(each.name, 0)) for each in MUTATIONS),
    *(Mutation(name, rule, "log", broken, seed) for name, rule, broken, seed in BROKEN),
)


def seeds_to_find(mutation: Mutation, limit: int = WITHIN) -> tuple[int, str] | None:
    """Run default schedules from seed 1 with a rule broken; the first that shows it, and how."""
    with mutation.broken():
        for seed in range(1, limit + 1):
            problems = simulate(draw(mutation.kind, seed)).problems
            if problems:
                return seed, problems[0]
    return None


def _search(number: int, limit: int) -> tuple[int, str] | None:
    return seeds_to_find(MUTATIONS[number], limit)


def main() -> int:
    """Print the table; of those whose names or deployments are given, if any are."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="broken rules, or deployments")
    parser.add_argument("--seeds", type=int, default=WITHIN, help="search so many")
    options = parser.parse_args()
    wanted = [
        number
        for number, mutation in enumerate(MUTATIONS)
        if not options.names or {mutation.name, mutation.kind} & set(options.names)
    ]
    print("| broken rule | where it stands | deployment | found by seed | as |")
    print("|---|---|---|---|---|")
    missed = 0
    with multiprocessing.get_context("spawn").Pool(initializer=quiet) as pool:
        searched = [pool.apply_async(_search, (number, options.seeds)) for number in wanted]
        for number, search in zip(wanted, searched, strict=True):
            mutation, found = MUTATIONS[number], search.get()
            seed, how = found if found is not None else ("not found", "")
            rule = how.partition(":")[0]
            if rule.startswith("server"):
                rule = "an invariant"
            missed += found is None
            design = "DESIGN-LOG" if mutation.kind == "log" else "DESIGN"
            print(
                f"| {mutation.name} | {design} {mutation.rule} | `{mutation.kind}` | {seed} "
                f"| {rule} |",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
