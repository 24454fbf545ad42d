"""Keyed calls over SQLite are found in the database, not in memory (DESIGN §6)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rifl
from lease_server import LeaseAuthority
from rifl._stores import Settlement, StoreCorrupt, open_store, settle_unknown
from rifl._stores.opening import open_inspection
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.later import Later
from rifl.core._serving.namespace import namespace_id
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import (
    Draining,
    ForkedProcess,
    InProgress,
    PayloadMismatch,
    RecordPending,
    SessionClosed,
    StoreUnavailable,
    WindowExceeded,
)
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord
from tests.helpers.waiting import DEADLINE_S, until
from tests.stores.conformance import FIRST, IDEMPOTENT, OTHER, PLAIN, TERM_S, call, keyed

PEER = namespace_id(b"peer")
ATOMIC = MethodPolicy(kind=Kind.ATOMIC)
RETENTION_S = 100.0
LARGE = CompletionRecord(response=b"r" * 10_000)


class Keys:
    """A store with two files, and a clock that is told."""

    def __init__(self, folder: Path, **bounds: Any) -> None:
        self.now = 0.0
        self.folder = folder
        self.path = folder / "main.db"
        self.url = f"sqlite:///{self.path}"
        self.elsewhere = MethodPolicy(kind=Kind.ATOMIC, database=f"sqlite:///{folder / 'other.db'}")
        self.bounds = KeyBounds(**{"retention_s": RETENTION_S, **bounds})
        self.store: Any
        self.open()

    def open(self, url: str = "") -> None:
        """Open, or open again."""
        self.store = open_store(url or self.url)
        self.authority = LeaseAuthority(self.store.leases, term_s=TERM_S, clock=lambda: self.now)
        self.store.bind(
            self.authority,
            MethodPolicies({"/s/Elsewhere": self.elsewhere}, "plain"),
            clock=lambda: self.now,
            bounds=Bounds(window=16),
            key_bounds=self.bounds,
        )

    def crash(self) -> None:
        """Go on with what a crash at this moment leaves."""
        left = self.folder / f"left{len(list(self.folder.iterdir()))}"
        left.mkdir()
        for file in self.folder.glob("*.db*"):
            if file.suffix != ".lock" and not file.name.endswith(".lock"):
                shutil.copy(file, left / file.name)
        self.store.close()
        for file in left.iterdir():
            shutil.copy(file, self.folder / file.name)
        for kept in self.folder.glob("*.db-*"):
            if not (left / kept.name).exists():
                kept.unlink()
        self.open()

    def claim(self, key: bytes, policy: MethodPolicy = PLAIN, **more: Any) -> Any:
        """Decide about a call of the peer."""
        return decided(self.store.claim(keyed(PEER, key, **more), policy))

    def begin(self, key: bytes, policy: MethodPolicy = PLAIN, client: int = PEER) -> Any:
        """Claim a new call, and start it."""
        decision = decided(self.store.claim(keyed(client, key), policy))
        assert decision.verdict is Verdict.NEW
        if (started := self.store.start(decision.attempt)) is not None:
            started.wait()
        return decision.attempt

    def complete(
        self,
        key: bytes,
        policy: MethodPolicy = PLAIN,
        record: CompletionRecord = FIRST,
        client: int = PEER,
    ) -> None:
        """Run a call to its end."""
        attempt = self.begin(key, policy, client)
        if policy.kind is not Kind.ATOMIC:
            self.store.finish(attempt, record).wait()
            return
        path = (policy.database or self.url).removeprefix("sqlite:///")
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN")
        self.store.transactions.record(attempt, record, connection)
        connection.execute("COMMIT")
        connection.close()
        self.store.adopt(attempt, self.store.committed(attempt))

    def sweep(self, seconds: float) -> None:
        """Let time pass, a sweep each second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.store.expire_keys()

    def counts(self) -> dict[str, Any]:
        """The counts that are kept in each file, where they are what its rows say."""
        found = {}
        for file in (self.path, self.folder / "other.db"):
            connection = sqlite3.connect(file)
            kept = connection.execute("SELECT client_id, keys, bytes FROM rifl_keys").fetchall()
            counted = connection.execute(
                "SELECT client_id, count(*), sum(length(identity) + length(record)) FROM rifl_call "
                "WHERE typeof(identity)='blob' AND record IS NOT NULL GROUP BY client_id"
            ).fetchall()
            connection.close()
            assert kept == counted
            found[file.name] = {client: keys for client, keys, _ in kept}
        return found


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[Keys]:
    """A store of its own."""
    made = Keys(tmp_path)
    yield made
    made.store.close()


def decided(reply: Any) -> Any:
    """The decision, once it is there."""
    return reply.wait() if isinstance(reply, Later) else reply


def look_all_up(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no key known to be new without a look-up."""
    add = keys.store._known_keys.add
    monkeypatch.setattr(keys.store._table, "_may_have", lambda *key: add(*key) or True)


class Held:
    """Look-ups wait on the disk, before or after they have read, until they are let go on.

    With ``all_keys`` none is known to be new without one.
    """

    def __init__(
        self,
        keys: Keys,
        monkeypatch: pytest.MonkeyPatch,
        *,
        read: bool = False,
        all_keys: bool = True,
    ) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.count = 0
        look_up = keys.store._databases.look_up
        if all_keys:
            look_all_up(keys, monkeypatch)

        def held(*arguments: Any) -> Any:
            found = look_up(*arguments) if read else None
            self.count += 1
            self.reached.set()
            assert self.go_on.wait(DEADLINE_S), "the look-up is where its caller waits for others"
            return found or look_up(*arguments)

        monkeypatch.setattr(keys.store._databases, "look_up", held)


def test_what_is_recorded_is_not_in_memory(keys: Keys) -> None:
    """Nothing is kept of a keyed call that has ended, but in a filter (§6)."""
    session = keys.authority.open_session("s").client_id
    for client in (PEER, session, keys.authority.grant().client_id):
        for at in range(20):
            keys.complete(b"%d" % at, IDEMPOTENT, client=client)
    for _ in range(2):
        entries = keys.store._table.entries()
        assert [len(entry.keyed or ()) for entry in entries] == [0] * len(entries)
        assert len(keys.store._table._retention) == 0
        assert keys.claim(b"7").record == FIRST
        assert keys.store.statistics()[1] in (0, 60), "as the last sweep counted"
        keys.store.close()
        keys.open()
    assert keys.store.statistics()[1] == 60


def test_counts_are_right_whatever_moved_the_rows(keys: Keys) -> None:
    """Counts and bytes move in each record's own commit: a crash leaves none behind (§6)."""
    session = keys.authority.open_session("s").client_id
    keys.complete(b"plain")
    keys.complete(b"idempotent", IDEMPOTENT, LARGE)
    keys.complete(b"atomic", ATOMIC)
    keys.complete(b"elsewhere", keys.elsewhere)
    keys.complete(b"in a session", client=session)
    keys.store.abandon(keys.begin(b"given up")).wait()
    for key in (b"settled", b"released", b"lost"):
        keys.begin(key)
    own = {"main.db": {PEER: 3, session: 1}, "other.db": {PEER: 1}}
    assert keys.counts() == own
    keys.crash()
    assert keys.counts() == {**own, "main.db": {PEER: 6, session: 1}}, "intents have their verdicts"
    assert keys.claim(b"elsewhere", keys.elsewhere).record == FIRST
    keys.store.close()
    ran = Settlement(True, "ann", "looked", b"a longer answer than the verdict was" * 100)
    settle_unknown(keys.url, [RpcId(PEER, None, b"settled")], ran)
    inspection = open_inspection(keys.url)
    assert inspection.release(RpcId(PEER, None, b"released"))
    inspection.close()
    keys.open()
    assert keys.counts()["main.db"] == {PEER: 5, session: 1}
    keys.store.clients_ended([session])
    until(lambda: keys.counts()["main.db"] == {PEER: 5}, "the session's are gone")
    keys.sweep(RETENTION_S + 2)
    assert keys.counts() == {"main.db": {}, "other.db": {}}


def test_a_verdict_of_a_late_intent_lowers_no_number(keys: Keys) -> None:
    """The file says how far it was written, also where an old row is rewritten (§6)."""
    keys.begin(b"lost")
    for at in range(5):
        keys.complete(b"%d" % at)
    for _ in range(2):
        keys.crash()
        assert keys.claim(b"lost").record.reason == "OUTCOME_UNKNOWN"
        assert keys.claim(b"4").record == FIRST


def test_one_call_of_a_key_waits_for_the_others_look_up(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is claimed before it is looked up: of two at once one is new (§4)."""
    held = Held(keys, monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        claims = [pool.submit(keys.claim, b"k", IDEMPOTENT) for _ in range(4)]
        assert held.reached.wait(DEADLINE_S)
        until(lambda: sum(len(each.waiters) for each in keys.store._table.running()) == 3, "wait")
        held.go_on.set()
        found = [claim.result(DEADLINE_S).verdict for claim in claims]
    assert sorted(found, key=str) == [Verdict.IN_PROGRESS] * 3 + [Verdict.NEW]
    assert held.count == 1


def test_what_a_look_up_finds_answers_all_that_wait_for_it(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is held against the recorded payload, not against that of the one who asked (§4)."""
    keys.complete(b"k")
    held = Held(keys, monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(keys.claim, b"k")
        assert held.reached.wait(DEADLINE_S)
        other = pool.submit(keys.claim, b"k", payload=b"another")
        same = pool.submit(keys.claim, b"k")
        until(lambda: sum(len(each.waiters) for each in keys.store._table.running()) == 2, "wait")
        held.go_on.set()
        assert first.result(DEADLINE_S).record == same.result(DEADLINE_S).record == FIRST
        with pytest.raises(PayloadMismatch):
            other.result(DEADLINE_S)
        assert held.count == 1
        held.go_on.clear()
        held.reached.clear()
        wrong = pool.submit(keys.claim, b"k", payload=b"another")
        assert held.reached.wait(DEADLINE_S)
        right = pool.submit(keys.claim, b"k")
        until(lambda: sum(len(each.waiters) for each in keys.store._table.running()) == 1, "waits")
        held.go_on.set()
        with pytest.raises(PayloadMismatch):
            wrong.result(DEADLINE_S)
        assert right.result(DEADLINE_S).record == FIRST
    assert keys.store.running() == 0


def test_an_event_loop_does_not_wait_for_the_disk(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up is in another thread, alone and in a batch; cancelled, it leaves no claim (§4).

    What comes while one is read waits, and is read together: with one statement a file.
    """
    keys.complete(b"known")
    held = Held(keys, monkeypatch)

    async def awaited(later: Any) -> Any:
        return await later

    async def serve() -> list[Any]:
        one = asyncio.ensure_future(awaited(keys.store.claim(keyed(PEER, b"known"), IDEMPOTENT)))
        while not held.reached.is_set():
            await asyncio.sleep(0.001)
        calls = [keyed(PEER, key) for key in (b"a", b"known", b"b")]
        many = asyncio.ensure_future(awaited(keys.store.claim_all(calls, IDEMPOTENT)))
        left = asyncio.ensure_future(awaited(keys.store.claim(keyed(PEER, b"left"), IDEMPOTENT)))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        held.go_on.set()
        return [await one, *await many]

    found = asyncio.run(asyncio.wait_for(serve(), DEADLINE_S))
    known, new = Verdict.COMPLETED, Verdict.NEW
    assert [each.verdict for each in found] == [known, new, known, new]
    assert [found[0].record, found[2].record] == [FIRST, FIRST]
    assert held.count == 2
    until(lambda: keys.store.running() == 2, "the cancelled one is given up")
    assert keys.claim(b"left", IDEMPOTENT).verdict is Verdict.NEW


async def _claim_many(keys: Keys, count: int) -> list[Any]:
    """Claims of so many callers, each awaited by itself; the decisions, or errors."""

    async def one(at: int) -> Any:
        client = namespace_id(b"peer %d" % at)
        return await keys.store.claim(keyed(client, b"k"), IDEMPOTENT)

    claims = [asyncio.ensure_future(one(at)) for at in range(count)]
    return await asyncio.gather(*claims, return_exceptions=True)


def test_look_ups_that_wait_take_one_job(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all callers that wait one job reads the keys, and tells their loop once (DESIGN §6)."""
    held = Held(keys, monkeypatch)
    jobs: list[Any] = []
    told: list[Any] = []
    early: list[int] = []
    lookups = keys.store._lookups
    begin, read_all = lookups._in_background, lookups._read

    def read_noted(taken: Any) -> None:
        before = len(told)
        read_all(taken)
        early.append(len(told) - before)

    monkeypatch.setattr(lookups, "_in_background", lambda work: (jobs.append(work), begin(work)))
    monkeypatch.setattr(lookups, "_read", read_noted)
    read: list[str] = []

    async def serve() -> list[Any]:
        loop = asyncio.get_running_loop()
        first = asyncio.ensure_future(_claim_many(keys, 1))
        while not held.reached.is_set():
            await asyncio.sleep(0.001)
        for database in keys.store._databases:
            database._reader.set_trace_callback(read.append)
        tell = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *given, **more: (  # type: ignore[method-assign]
            told.append(given),
            tell(*given, **more),
        )
        others = asyncio.ensure_future(_claim_many(keys, 17))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # One of them waits beside the first.
        assert len(lookups._waiting) == 16
        held.go_on.set()
        found = [*await first, *await others]
        assert len(told) <= 2, "for the first one, and for the others"
        return found

    found = asyncio.run(asyncio.wait_for(serve(), DEADLINE_S))
    verdicts = [each.verdict for each in found]
    assert verdicts == [Verdict.NEW, Verdict.IN_PROGRESS, *[Verdict.NEW] * 16]
    assert (len(jobs), held.count, early) == (1, 2, [0, 0])
    assert len(read) == 4, "a statement for the first one, and one for the others, in each file"


def test_a_fork_while_look_ups_wait(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child gets neither their job nor the connection, also for what the parent had begun."""
    held = Held(keys, monkeypatch)
    begun: Any = keys.store.claim(keyed(namespace_id(b"before"), b"k"), IDEMPOTENT)

    async def awaited() -> Any:
        return await begun

    async def claimed() -> Any:
        return await keys.store.claim(keyed(PEER, b"new"), IDEMPOTENT)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: asyncio.run(_claim_many(keys, 3)))
        assert held.reached.wait(DEADLINE_S)
        if (child := os.fork()) == 0:
            # Of the parent's tests nothing may run here, and nothing waits for long.
            signal.alarm(int(DEADLINE_S))
            refused = 0
            try:
                for use in (
                    lambda: keys.claim(b"new"),
                    lambda: asyncio.run(claimed()),
                    begun.wait,
                    lambda: asyncio.run(awaited()),
                ):
                    try:
                        use()
                    except ForkedProcess:
                        refused += 1
            finally:
                os._exit(refused)
        _, status = os.waitpid(child, 0)
        held.go_on.set()
        found = waiting.result(DEADLINE_S)
    assert os.waitstatus_to_exitcode(status) == 4
    assert [each.verdict for each in found] == [Verdict.NEW] * 3
    assert begun.wait().verdict is Verdict.NEW
    assert keys.counts() == {"main.db": {}, "other.db": {}}


@pytest.mark.parametrize("error", [RuntimeError("a defect"), SystemExit("a defect")])
def test_a_job_that_breaks_leaves_no_look_up_behind(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Each caller sees that it failed, and the next ones are read (DESIGN §6)."""
    with monkeypatch.context() as broken:

        def fails(*_: Any) -> Any:
            raise error

        broken.setattr(keys.store._databases, "look_up", fails)
        found = asyncio.run(asyncio.wait_for(_claim_many(keys, 16), DEADLINE_S))
        expected = RuntimeError if isinstance(error, RuntimeError) else StoreUnavailable
        assert [type(each) for each in found] == [expected] * 16
        assert keys.store.running() == 0
    found = asyncio.run(asyncio.wait_for(_claim_many(keys, 16), DEADLINE_S))
    assert [each.verdict for each in found] == [Verdict.NEW] * 16


def test_a_defect_of_one_call_is_not_the_others(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of calls that are read together one whose record cannot be decoded fails alone (§6)."""
    keys.complete(b"bad")
    keys.complete(b"good")
    held = Held(keys, monkeypatch)
    decode = keys.store._codec.from_bytes

    def from_bytes(stored: bytes, call: Any) -> Any:
        if call.key == b"bad":
            raise KeyError("a defect")
        return decode(stored, call)

    monkeypatch.setattr(keys.store._codec, "from_bytes", from_bytes)

    async def awaited(key: bytes) -> Any:
        return await keys.store.claim(keyed(PEER, key), IDEMPOTENT)

    async def serve() -> list[Any]:
        first = asyncio.ensure_future(awaited(b"first"))
        while not held.reached.is_set():
            await asyncio.sleep(0.001)
        others = asyncio.gather(awaited(b"bad"), awaited(b"good"), return_exceptions=True)
        await asyncio.sleep(0)
        held.go_on.set()
        await first
        return await others

    bad, good = asyncio.run(asyncio.wait_for(serve(), DEADLINE_S))
    assert (type(bad), good.record) == (KeyError, FIRST)
    assert held.count == 2


def test_look_ups_that_wait_when_the_store_closes_are_refused(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not read any more is not known to be new (DESIGN §6)."""
    held = Held(keys, monkeypatch)

    async def serve() -> list[Any]:
        first = asyncio.ensure_future(_claim_many(keys, 1))
        while not held.reached.is_set():
            await asyncio.sleep(0.001)
        others = asyncio.ensure_future(_claim_many(keys, 4))
        while not keys.store._lookups._waiting:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(keys.store.close)
        held.go_on.set()
        return [*await first, *await others]

    found = asyncio.run(asyncio.wait_for(serve(), DEADLINE_S))
    assert [type(each) for each in found] == [StoreUnavailable] * 5


@pytest.mark.parametrize("batched", [False, True])
def test_a_look_up_that_fails_runs_nothing(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    """The store cannot be read: the call is refused, and is decided when it can (§6)."""
    look_all_up(keys, monkeypatch)
    keys.complete(b"k")
    [database, _] = keys.store._databases
    with monkeypatch.context() as broken:

        def fails(*_: Any) -> Any:
            raise sqlite3.OperationalError("unable to open database file")

        broken.setattr(database, "look_up", fails)
        if batched:
            replies = keys.store.claim_all([keyed(PEER, b"k"), keyed(PEER, b"n")], PLAIN).wait()
            assert [type(reply) for reply in replies] == [StoreUnavailable] * 2
        else:
            with pytest.raises(StoreUnavailable):
                keys.claim(b"k")
        assert keys.store.running() == 0
    assert keys.claim(b"k").record == FIRST
    assert keys.claim(b"n").verdict is Verdict.NEW


def test_a_damaged_page_stops_the_store(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage that a look-up meets is as that which a commit meets: new calls are refused (§6)."""
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CORRUPT, "SQLITE_CORRUPT"
    [database, _] = keys.store._databases

    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(database, "look_up", fails)
    with pytest.raises(StoreUnavailable):
        keys.claim(b"k")
    assert database.journal.stopped is error
    with pytest.raises(StoreUnavailable):
        keys.store.claim(call(keys.authority.grant().client_id, 1), IDEMPOTENT)


def test_a_recorded_key_is_answered_while_new_ones_are_refused(tmp_path: Path) -> None:
    """Known calls first: while the server drains, is full, or its session is closed (§4)."""
    keys = Keys(tmp_path, max_keys=2)
    keys.complete(b"1")
    keys.complete(b"2")
    with pytest.raises(WindowExceeded, match="2 keys with"):
        keys.claim(b"3")
    assert keys.claim(b"1").record == FIRST
    keys.store.refuse_new(True)
    assert keys.store.statistics()[2] == 0
    with pytest.raises(Draining):
        keys.claim(b"3")
    assert keys.claim(b"2").record == FIRST
    assert keys.store.running() == 0
    keys.store.close()


def test_calls_that_run_count_as_keys(tmp_path: Path) -> None:
    """What is on the disk and what runs are bounded together, also after a crash (DESIGN §9)."""
    keys = Keys(tmp_path, max_keys=2)
    keys.complete(b"1")
    running = keys.begin(b"2")
    with pytest.raises(WindowExceeded):
        keys.claim(b"3")
    keys.store.abandon(running).wait()
    keys.begin(b"2")
    keys.crash()
    with pytest.raises(WindowExceeded):
        keys.claim(b"3")
    keys.store.close()


def test_a_retention_that_ends_while_a_duplicate_waits(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered by what was there, or is new; a new one is not swept with the old (§4)."""
    keys.complete(b"k")
    for read, expected in ((True, Verdict.COMPLETED), (False, Verdict.NEW)):
        with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
            held = Held(keys, patch, read=read)
            claim = pool.submit(keys.claim, b"k", IDEMPOTENT)
            assert held.reached.wait(DEADLINE_S)
            keys.sweep(RETENTION_S + 2)
            held.go_on.set()
            decision = claim.result(DEADLINE_S)
            assert decision.verdict is expected
    keys.store.finish(decision.attempt, OTHER).wait()
    keys.sweep(RETENTION_S - 5)
    assert keys.claim(b"k").record == OTHER
    keys.sweep(6)
    assert keys.claim(b"k").verdict is Verdict.NEW


def test_a_sweep_takes_more_than_a_commit(keys: Keys) -> None:
    """Retentions of many keys end in one sweep, in several commits (DESIGN §3)."""
    for start in range(0, 2500, 500):
        calls = [keyed(PEER, b"%d" % at) for at in range(start, start + 500)]
        attempts = [each.attempt for each in decided(keys.store.claim_all(calls, IDEMPOTENT))]
        keys.store.finish_all(attempts, [FIRST] * 500).wait()
    keys.sweep(RETENTION_S)
    assert keys.counts()["main.db"] == {}
    assert keys.store._table.get(PEER) is None, "nor is its namespace left"


def test_a_session_keeps_its_keys_as_long_as_it_lasts(keys: Keys) -> None:
    """Keys of a session have no retention of their own, also those of a crash (DESIGN §5)."""
    session = keys.authority.open_session("s", retention_s=1e5).client_id
    keys.complete(b"k", client=session)
    keys.begin(b"lost", client=session)
    keys.crash()
    keys.sweep(RETENTION_S + 60)
    assert keys.store.claim(keyed(session, b"k"), PLAIN).wait().record == FIRST
    lost = keys.store.claim(keyed(session, b"lost"), PLAIN).wait()
    assert lost.record.reason == "OUTCOME_UNKNOWN"


def test_a_verdict_is_kept_for_the_retention_from_the_start_that_gave_it(keys: Keys) -> None:
    """A crash interrupted the call. Its end is not known, so it is not kept for less (§4)."""
    keys.begin(b"lost")
    keys.crash()
    keys.sweep(RETENTION_S - 2)
    assert keys.claim(b"lost").record.reason == "OUTCOME_UNKNOWN"
    keys.sweep(4)
    assert keys.claim(b"lost").verdict is Verdict.NEW


@pytest.mark.parametrize("fatal", [False, True])
def test_a_record_that_is_not_durable_is_not_looked_past(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, fatal: bool
) -> None:
    """A commit, or its fsync, that failed leaves a call that runs: it is never new (§6)."""
    attempt = keys.begin(b"k", IDEMPOTENT)
    journal = keys.store._main.journal
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC" if fatal else "SQLITE_IOERR_WRITE"
    with monkeypatch.context() as broken:

        def fails(*_: Any, **__: Any) -> Any:
            if fatal:
                journal._stop(error)
            return error

        broken.setattr(journal._writer, "commit", fails)
        with pytest.raises(RecordPending):
            keys.store.finish(attempt, FIRST).wait()
        again = keys.store.claim(keyed(PEER, b"k"), IDEMPOTENT)
        assert again.verdict is Verdict.IN_PROGRESS
        assert again.attempt is attempt
    if not fatal:
        until(lambda: attempt.ended, "the record is written again")
        assert keys.claim(b"k").record == FIRST


def test_a_client_that_ends_while_its_key_is_looked_up_is_refused(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows go after the look-up, and no claim is left (§4)."""
    session = keys.authority.open_session("s").client_id
    keys.complete(b"k", client=session)
    held = Held(keys, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        claim = pool.submit(lambda: decided(keys.store.claim(keyed(session, b"n"), PLAIN)))
        assert held.reached.wait(DEADLINE_S)
        keys.store.clients_ended([keys.authority.close_session("s")])
        held.go_on.set()
        with pytest.raises((SessionClosed, InProgress)):
            claim.result(DEADLINE_S)
    until(lambda: keys.counts()["main.db"] == {}, "its rows are gone")
    assert keys.store._table.get(session) is None


def test_the_bounds_are_those_of_the_disk(tmp_path: Path) -> None:
    """A server over a file takes keys for half of what is free there, by default (DESIGN §9)."""
    free = shutil.disk_usage(tmp_path).free
    with rifl.Deduplicator(f"sqlite:///{tmp_path / 'own.db'}") as dedup:
        bounds = dedup._engine.bounds
        assert free // 4 < (bounds.max_key_bytes or 0) < free
        assert bounds.max_keys == (bounds.max_key_bytes or 0) // 256
        assert dedup._store._table._key_bounds.max_keys == bounds.max_keys  # type: ignore[attr-defined]
    with rifl.Deduplicator("memory:") as dedup:
        assert dedup._engine.bounds.max_keys is None


def looked_up(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that are looked up from now on."""
    found: list[bytes] = []
    look_up = keys.store._databases.look_up
    noted = lambda calls: (found.extend(call.key for call in calls), look_up(calls))[1]  # noqa: E731
    monkeypatch.setattr(keys.store._databases, "look_up", noted)
    return found


@pytest.mark.parametrize("opening", [1_000, 0])
def test_a_key_that_no_file_has_is_not_looked_up(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, opening: int
) -> None:
    """Whichever way a key came into a file, it is looked up; and others are not (§6)."""
    for at in range(600):
        keys.complete(b"%d" % at, IDEMPOTENT)
    keys.complete(b"elsewhere", keys.elsewhere)
    keys.begin(b"lost")
    monkeypatch.setattr("rifl._stores.sqlite.store.AT_OPENING", opening)
    keys.crash()
    keys.sweep(1)
    keys.complete(b"the client's first one")
    sought = looked_up(keys, monkeypatch)
    keys.complete(b"new")
    keys.complete(b"new elsewhere", keys.elsewhere)
    keys.complete(b"new and atomic", ATOMIC)
    running = keys.begin(b"running")
    assert not sought
    there = [*(b"%d" % at for at in range(600)), b"new", b"new and atomic"]
    assert {keys.claim(key).verdict for key in there} == {Verdict.COMPLETED}
    for key in (b"elsewhere", b"new elsewhere"):
        assert keys.claim(key, keys.elsewhere).record == FIRST
    assert keys.claim(b"lost").record.reason == "OUTCOME_UNKNOWN"
    assert len(sought) == len(there) + 3
    assert keys.claim(b"running").attempt is running
    keys.store.abandon(running).wait()
    assert keys.claim(b"running").verdict is Verdict.NEW


def test_until_all_keys_were_read_each_is_looked_up(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that lacks keys says of none that it is new; what comes meanwhile is in it (§6)."""
    for at in range(600):
        keys.complete(b"%03d" % at, IDEMPOTENT)
    monkeypatch.setattr("rifl._stores.sqlite.store.AT_OPENING", 1)
    keys.crash()
    known, first = keys.store._known_keys, keys.begin(b"000 in front of all", IDEMPOTENT)
    keys.store.finish(first, FIRST).wait()
    running = keys.begin(b"000 and runs", IDEMPOTENT)
    sought = looked_up(keys, monkeypatch)
    assert keys.claim(b"599").record == FIRST
    keys.store.abandon(keys.claim(b"a new one", IDEMPOTENT).attempt)
    assert sought == [b"599", b"a new one"]
    known.read(0, 100_000)
    keys.store.abandon(keys.claim(b"another", IDEMPOTENT).attempt)
    assert len(sought) == 2
    keys.store.finish(running, OTHER).wait()
    assert keys.claim(b"000 in front of all").record == FIRST
    assert keys.claim(b"000 and runs").record == OTHER


def test_a_full_filter_is_read_again(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys whose retention ended are no longer in it; those that run are (§6)."""
    known = keys.store._known_keys
    keys.complete(b"old")
    keys.sweep(RETENTION_S + 2)
    keys.complete(b"kept")
    running = keys.begin(b"running", IDEMPOTENT)
    before = known._filter
    before._most = 0
    keys.store.expire_keys()
    assert known._filter is not before
    assert not known._filter.full
    sought = looked_up(keys, monkeypatch)
    keys.complete(b"old")
    assert not sought
    keys.store.finish(running, OTHER).wait()
    assert keys.claim(b"kept").record == FIRST
    assert keys.claim(b"running").record == OTHER


@pytest.mark.parametrize("kind", ["idempotent", "atomic", "elsewhere", "batch"])
def test_bytes_are_counted_in_memory_until_a_look_up_counts_them(tmp_path: Path, kind: str) -> None:
    """A client that is far from its bounds is not looked up; they hold all the same (DESIGN §9)."""
    keys = Keys(tmp_path, max_bytes=35_000)
    for at in range(4):
        if kind == "batch":
            [reply] = decided(keys.store.claim_all([keyed(PEER, b"%d" % at)], IDEMPOTENT))
            keys.store.finish_all([reply.attempt], [LARGE]).wait()
        else:
            policies = {"idempotent": IDEMPOTENT, "atomic": ATOMIC, "elsewhere": keys.elsewhere}
            keys.complete(b"%d" % at, policies[kind], LARGE)
    with pytest.raises(WindowExceeded, match="4 keys with 40"):
        keys.claim(b"4")
    keys.sweep(RETENTION_S + 2)
    assert keys.claim(b"4").verdict is Verdict.NEW
    keys.store.close()


def test_no_count_in_memory_is_too_low(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded between a look-up's reading and its claim counts as well (DESIGN §9)."""
    keys.complete(b"first", IDEMPOTENT)
    keys.store.abandon(keys.begin(b"again", IDEMPOTENT))
    held = Held(keys, monkeypatch, read=True, all_keys=False)
    with ThreadPoolExecutor(1) as pool:
        claim = pool.submit(keys.claim, b"again", IDEMPOTENT)
        assert held.reached.wait(DEADLINE_S)
        keys.complete(b"second", IDEMPOTENT)
        held.go_on.set()
        assert claim.result(DEADLINE_S).verdict is Verdict.NEW
    entry = keys.store._table.get(PEER)
    with sqlite3.connect(keys.path) as connection:
        [stored] = connection.execute("SELECT keys, bytes FROM rifl_keys").fetchall()
    connection.close()
    counted = zip(entry.kept_keys, entry.recorded, strict=True)
    assert tuple(map(sum, counted)) == stored


def test_a_large_file_opens_without_its_calls(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of calls are not read when it opens, those of all else are checked (§6)."""
    keys.complete(b"k")
    keys.store.close()
    monkeypatch.setattr("rifl._stores.sqlite.schema._CHECKED_BYTES", 0)
    keys.open()
    assert keys.claim(b"k").record == FIRST
    keys.store.close()
    with sqlite3.connect(keys.path) as connection:
        root = "SELECT rootpage FROM sqlite_master WHERE name='rifl_row'"
        (page,) = connection.execute(root).fetchone()
    connection.close()
    with keys.path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(StoreCorrupt):
        keys.open()
