"""First attempts, copies of them and later ones on several replicas at once (DESIGN §4)."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from _rifl_ground.refusals import Outcome
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.serving import serve
from rifl.core._shared.errors import InProgress, RecordPending, StaleRpc
from rifl.core._shared.record import CompletionRecord
from tests.stores.postgres.unclaimed_runs import RAISED, UNCLAIMED, drive
from tests.stores.redis.replica import call

CLIENTS, CALLS, COPIES = 3, 25, 4


def test_copies_of_first_attempts_have_one_effect_and_one_answer(replicas, shared_server, database):
    """However they meet, whoever is late, and whatever was acknowledged (DESIGN §4, step 6)."""
    database.execute("CREATE TABLE IF NOT EXISTS storm (client bigint, seq bigint, answer bytea)")
    database.execute("TRUNCATE storm")
    database.commit()
    opened = [replicas(window=64) for _ in range(3)]
    clients = [opened[0].client() for _ in range(CLIENTS)]
    answers: dict[tuple[int, int], set[Any]] = defaultdict(set)
    nothing: dict[tuple[int, int], int] = defaultdict(int)
    lock = threading.Lock()

    def one_copy(client: int, seq: int, first: int, dice: random.Random) -> None:
        replica, number = dice.choice(opened), dice.choice((1, 1, 1, 2))
        raises, by_commit = dice.random() < 0.15, dice.random() < 0.7
        reply = CompletionRecord(response=b"%d" % dice.getrandbits(40))

        def run(attempt: Any) -> HandlerResult:
            transactions = replica.store.transactions
            try:
                with psycopg.connect(shared_server.url()) as connection:
                    if by_commit:
                        transactions.begin(connection)
                    connection.execute(
                        "INSERT INTO storm VALUES (%s, %s, %s)", (client, seq, reply.response)
                    )
                    try:
                        if raises:
                            raise ValueError("before the commit")
                        if by_commit:
                            transactions.commit(attempt, reply, connection)
                        else:
                            transactions.record(attempt, reply, connection)
                            connection.commit()
                    except BaseException:
                        transactions.rollback(connection)
                        raise
            except Exception:  # noqa: BLE001 - as a shell does
                return HandlerResult(RAISED, raised=True, undone=by_commit)
            return HandlerResult(reply)

        arriving = call(client, seq, first=first, attempt=number)
        try:
            answer = drive(serve(replica.store, arriving, UNCLAIMED), replica.store, run)
        except (InProgress, RecordPending, StaleRpc):
            return
        with lock:
            if answer.outcome in (Outcome.EXECUTED, Outcome.REPLAYED):
                answers[client, seq].add(answer.record.response)
            elif number > 1:
                nothing[client, seq] += answer.outcome is Outcome.NOT_EXECUTED

    def session(client: int, seed: int) -> None:
        dice = random.Random(seed)
        with ThreadPoolExecutor(COPIES) as pool:
            late: list[Any] = []
            for seq in range(1, CALLS + 1):
                # Those before are acknowledged, while copies of them may be under way.
                first = max(1, seq - dice.randrange(3))
                copies = [
                    pool.submit(one_copy, client, seq, first, random.Random(dice.getrandbits(60)))
                    for _ in range(COPIES)
                ]
                copies[0].result()
                late += copies
            for each in late:
                each.result()

    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(session, client, client) for client in clients]:
            done.result()
    database.rollback()
    effects = database.execute("SELECT client, seq, answer FROM storm").fetchall()
    found = {(client, seq): bytes(answer) for client, seq, answer in effects}
    assert len(found) == len(effects), "a call had two effects"
    assert {each: {found[each]} for each in answers} == dict(answers)
    # Said of later attempts without a record, it would have been a guess.
    assert not any(nothing.values())
    assert len(found) > CLIENTS * CALLS / 2
    assert not any(len(replica.store._attempts) for replica in opened)
