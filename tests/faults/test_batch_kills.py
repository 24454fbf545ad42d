"""A real server killed in the middle of a batch, and held to its promise (DESIGN §1, §4)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import rifl
from rifl import BatchItem, BatchResult, Outcome
from tests.faults.server import METHODS
from tests.faults.test_kill_points import effects_in
from tests.helpers.processes import Process, started

pytestmark = [pytest.mark.slow, pytest.mark.faults]

_ROWS = 6
# The handler of this row did its work when the process dies; rows before it ran whole.
_KILLED_AT = 2


def _items(kind: str) -> list[BatchItem]:
    points = ["effect" if at == _KILLED_AT else "" for at in range(_ROWS)]
    return [
        BatchItem(f"{kind}@{point}:{at}".encode(), f"{kind}-{at}".encode())
        for at, point in enumerate(points)
    ]


@contextlib.contextmanager
def _serving(folder: Path, shell: str, *more: str) -> Iterator[tuple[Process, rifl.Channel]]:
    """A server process, and a channel of the one named session."""
    with started("tests.faults.server", str(folder), shell, *more, log=folder / "log") as server:
        address = f"127.0.0.1:{server.line().split()[1]}"
        with rifl.connect(address, session="rows") as channel:
            yield server, channel


@pytest.mark.parametrize("shell", ["sync", "aio"])
@pytest.mark.parametrize("kind", ["plain", "idempotent", "atomic"])
def test_the_promise_is_kept_in_the_middle_of_a_batch(
    tmp_path: Path, shell: str, kind: str
) -> None:
    """Effects and answers after a SIGKILL are those of the guarantees table, row by row (§1)."""
    items = _items(kind)
    before = [BatchItem(b"whole", b"whole-%d" % at) for at in range(3)]
    with _serving(tmp_path, shell) as (server, channel):
        whole = channel.batch(METHODS[kind], before, timeout=20)
        assert {result.outcome for result in whole} == {Outcome.EXECUTED}
        under_way = channel.batch_future(METHODS[kind], items, timeout=20)
        assert server.line() == f"held {items[_KILLED_AT].request.decode()}"
        assert not under_way.done()
        server.kill()
    lost = under_way.result(30)
    assert {result.outcome for result in lost} == {Outcome.UNKNOWN}
    answers: list[list[BatchResult]] = []
    for _ in range(2):
        with _serving(tmp_path, shell, "--free") as (server, channel):
            again = channel.batch(METHODS[kind], before, timeout=20)
            assert [(r.response, r.outcome) for r in again] == [
                (r.response, Outcome.REPLAYED) for r in whole
            ]
            answers.append(channel.batch(METHODS[kind], items, timeout=20))
            server.kill()
    effects = effects_in(tmp_path)
    assert effects.pop("whole") == 3
    counts = [effects[item.request.decode()] for item in items]
    ran = _KILLED_AT + 1
    if kind == "plain":
        # Lasting; whether a handler had begun, nobody can tell from an intent.
        assert counts == [1] * ran + [0] * (_ROWS - ran)
        for results in answers:
            assert {(r.code.name, r.reason) for r in results} == {
                ("FAILED_PRECONDITION", "OUTCOME_UNKNOWN")
            }
        return
    assert counts == [2 if kind == "idempotent" else 1] * ran + [1] * (_ROWS - ran)
    for results in answers:
        assert [r.response for r in results] == [b"done " + item.request for item in items]
    first = [Outcome.EXECUTED] * _ROWS
    if kind == "atomic":
        first[:ran] = [Outcome.REPLAYED] * ran
    assert [r.outcome for r in answers[0]] == first
    assert {r.outcome for r in answers[1]} == {Outcome.REPLAYED}
