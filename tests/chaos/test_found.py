"""Every defect of the product that the simulator found is found again once it is put back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import redis

from chaos.sim.run import Result, simulate
from chaos.sim.schedule import draw
from curp._replica.group_store import GroupStore
from rifl._stores.embedded import EmbeddedStore
from rifl._stores.shared.attempts import Attempts
from rifl._stores.shared.requests import Ending
from rifl._stores.shared.settlement import AttemptSettlement
from rifl._stores.shared.store import SharedStore
from rifl._stores.sqlite.attempt import is_stale
from rifl._stores.sqlite.recovery import Recovery
from rifl._stores.sqlite.store import SqliteStore
from rifl.core._calling import answer as answer_rules
from rifl.core._serving.client_table import ClientTable
from rifl.core._serving.policy import Kind
from rifl.core._shared.errors import LeaseExpired
from sharedlog._consumer.redis_transaction import RedisTransaction
from sharedlog._core.consumer.changelog import Changelog
from sharedlog._core.reading import Reader

# Where a change of what seeds draw has moved the one of the table, so many are searched.
WITHIN = 1_000


def _breaks_a_promise(broken: Result, held: Callable[[], Result]) -> bool:
    del held
    return bool(broken.problems)


# Retries of a run, with the defect and without it.
_RETRIES: Counter[str] = Counter()


def _counted(rule: Callable[[float, float | None], float], run: str) -> Callable[..., float]:
    _RETRIES[run] = 0

    def pause_s(backoff_s: float, told_s: float | None) -> float:
        _RETRIES[run] += 1
        return rule(backoff_s, told_s)

    return pause_s


def _asks_far_more(_: Result, held: Callable[[], Result]) -> bool:
    with patch.object(answer_rules, "pause_s", _counted(answer_rules.pause_s, "held")):
        held()
    return _RETRIES["hasty"] > 1.5 * _RETRIES["held"]


class Found(NamedTuple):
    """A defect, and a seed that shows it today.

    ``behind``: breaks the rule that came later and stands behind the defect's; without that
    nothing shows. It is broken with the defect and without it, and alone breaks no promise there.
    """

    name: str
    kind: str
    seed: int
    put_back: Callable[[], AbstractContextManager[Any]]
    shown: Callable[[Result, Callable[[], Result]], bool] = _breaks_a_promise
    behind: Callable[[], AbstractContextManager[Any]] = nullcontext


def _retries_that_do_not_back_off() -> AbstractContextManager[Any]:
    def pause_s(backoff_s: float, told_s: float | None) -> float:
        return backoff_s if told_s is None else told_s

    return patch.object(answer_rules, "pause_s", _counted(pause_s, "hasty"))


def _first_calls_without_a_trace() -> AbstractContextManager[Any]:
    return patch.object(Recovery, "recover_sessions", lambda self, rows: None)


def _sessions_known_by_their_rows_alone() -> AbstractContextManager[Any]:
    original = SqliteStore.start

    def start(self: SqliteStore, attempt: Any) -> Any:
        known = attempt.policy.kind is not Kind.PLAIN and attempt.entry.keyed_only
        return None if known else original(self, attempt)

    return patch.object(SqliteStore, "start", start)


def _lost_replicas_calls() -> AbstractContextManager[Any]:
    return patch.object(SharedStore, "may_have_run", return_value=False)


def _late_answers() -> AbstractContextManager[Any]:
    original = AttemptSettlement._standing

    def standing(self: AttemptSettlement, attempt: Any, reply: Any) -> Any:
        return None if reply.ending is Ending.ACKNOWLEDGED else original(self, attempt, reply)

    return patch.object(AttemptSettlement, "_standing", standing)


def _expired_while_it_ran() -> AbstractContextManager[Any]:
    original = AttemptSettlement._standing

    def standing(self: AttemptSettlement, attempt: Any, reply: Any) -> Any:
        if reply.ending is Ending.GONE:
            raise LeaseExpired("expired while the call ran")
        return original(self, attempt, reply)

    return patch.object(AttemptSettlement, "_standing", standing)


def _claims_answered_late() -> AbstractContextManager[Any]:
    original = SharedStore.__init__

    def init(self: SharedStore, *given: Any, **named: Any) -> None:
        original(self, *given, **named)
        self._claims._doubtful_after_s = float("inf")

    return patch.object(SharedStore, "__init__", init)


@contextmanager
def _expired_before_that_is_durable() -> Iterator[None]:
    with (
        patch.object(SqliteStore, "claim", EmbeddedStore.claim),
        patch.object(SqliteStore, "claim_all", EmbeddedStore.claim_all),
    ):
        yield


def _answered_before_it_is_durable() -> AbstractContextManager[Any]:
    original = SqliteStore.finish

    def finish(self: SqliteStore, attempt: Any, record: Any) -> Any:
        with self._lock:
            stale = is_stale(attempt)
            if stale and attempt.intended:
                self._delete(attempt, self._main)
        if not stale:
            return original(self, attempt, record)
        self._settle(attempt, record)
        return None

    return patch.object(SqliteStore, "finish", finish)


@contextmanager
def _idle_clients_forgotten() -> Iterator[None]:
    with (
        patch.object(ClientTable, "find", ClientTable.get),
        patch.object(GroupStore, "_set_idle_aside", EmbeddedStore._set_idle_aside),
    ):
        yield


def _another_arrival_unseen() -> AbstractContextManager[Any]:
    return patch.object(Attempts, "give_up", return_value=False)


def _refused_for_good() -> AbstractContextManager[Any]:
    return patch.object(answer_rules, "MOMENTARY_REASONS", frozenset())


def _runs_not_noted() -> AbstractContextManager[Any]:
    return patch.object(EmbeddedStore, "may_have_run", return_value=False)


def _lost_answer_taken_for_a_changed_key() -> AbstractContextManager[Any]:
    original = RedisTransaction.carry

    def carry(self: RedisTransaction, *words: Any) -> Any:
        try:
            return original(self, *words)
        except (redis.ConnectionError, redis.TimeoutError):
            return None

    return patch.object(RedisTransaction, "carry", carry)


def _states_of_a_time_before() -> AbstractContextManager[Any]:
    def passed(self: Changelog, lsn: int) -> None:
        if self._through is not None and lsn > self._through:
            self._through = lsn
            self._reader = None

    return patch.object(Changelog, "passed", passed)


def _rows_taken_for_returned() -> AbstractContextManager[Any]:
    return patch.object(Reader, "through", property(lambda reader: reader._at))


FOUND = (
    Found("a range's rest left out", "query", 5, _rows_taken_for_returned),
    Found("a state of a time before", "consumer", 67, _states_of_a_time_before),
    # Beside it no process knew that it had a shard: one seed in thousands shows it,
    # ``test_a_process_leaves_a_shard_that_it_was_given_unknowingly`` always.
    Found(
        "a lost answer taken for a changed key",
        "consumer",
        20,
        _lost_answer_taken_for_a_changed_key,
    ),
    Found("hasty retries", "replicas", 4, _retries_that_do_not_back_off, _asks_far_more),
    Found(
        "a session's first calls",
        "spark",
        9,
        _first_calls_without_a_trace,
        behind=_sessions_known_by_their_rows_alone,
    ),
    Found("a lost replica's calls", "replicas", 16, _lost_replicas_calls),
    Found("late answers", "replicas", 16, _late_answers),
    Found("idle clients forgotten", "curp", 1, _idle_clients_forgotten),
    Found("expired while it ran", "replicas", 165, _expired_while_it_ran),
    Found("given up after it ran", "memory", 34, _runs_not_noted),
    # Beside these a take-over whose reply is lost forgot that a run had begun: one seed in
    # thousands shows it, ``test_a_take_over_whose_reply_is_lost_forgets_no_run`` always.
    Found("claims answered late", "replicas", 812, _claims_answered_late),
    Found("expired before that was durable", "sqlite", 26, _expired_before_that_is_durable),
    Found("late answers before they were durable", "sqlite", 93, _answered_before_it_is_durable),
    Found(
        "another arrival's run",
        "replicas",
        44,
        _another_arrival_unseen,
        behind=_refused_for_good,
    ),
)


@pytest.mark.mutation
@pytest.mark.timeout(600)
@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.name)
def test_a_defect_is_found_again(found: Found) -> None:
    """A seed shows the defect when it is put back, and keeps every promise as things are."""
    for seed in (found.seed, *range(1, WITHIN + 1)):
        schedule = draw(found.kind, seed)
        with found.put_back(), found.behind():
            broken = simulate(schedule)
        if found.shown(broken, partial(simulate, schedule)):
            with found.behind():
                assert simulate(schedule).problems == []
            assert simulate(schedule).problems == []
            return
    pytest.fail(f"{WITHIN} seeds of {found.kind} do not show it")
