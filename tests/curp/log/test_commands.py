"""``python -m curp.log`` (DESIGN §7; the CLI's part)."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

from curp.log import open_engine
from curp.log._commands import main
from curp.log._creation import new_log
from curp.log._errors import CorruptLog
from curp.log._opening import open_new
from curp.log._values import NewLogEntry
from curp.log._verification import verify
from curp.v1 import curp_pb2
from sharedlog._engines.sqlite.tags import UNINDEXED
from tests.curp.log.conformance import Writer, append_id
from tests.curp.logs import opened_new


@pytest.fixture
def path(tmp_path):
    """A log with a snapshot, trimmed, with group entries and one of something else."""
    path = tmp_path / "log.db"
    engine = open_new(f"sqlite:///{path}?group=bank", new_log())
    writer = Writer(engine)
    operation = curp_pb2.LogEntry(version=1)
    operation.operation.client_id = 7
    operation.operation.seq = 3
    operation.operation.method = "/bank.Bank/Deposit"
    operation.operation.request = b"secret of a client"
    secrets = curp_pb2.LogEntry(version=1)
    secrets.secrets_put.secrets.add(key_id=1, secret=b"hmac key")
    bodies = [b"\xff not of a group", operation.SerializeToString(), secrets.SerializeToString()]
    engine.append(
        [NewLogEntry(b"gone"), *(NewLogEntry(body, ("t",)) for body in bodies)],
        configuration=1,
        expected_tail=0,
        append_id=append_id(),
    )
    writer.snapshot(1, b"one", b"three")
    engine.trim(1, configuration=1)
    engine.close()
    return path


def _run(path, capsys, *arguments):
    command, *options = arguments
    code = main([command, f"sqlite:///{path}?group=bank", *options])
    captured = capsys.readouterr()
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_dump_shows_entries_without_what_may_be_personal(path, capsys):
    """LSN, tags, kind and identity; requests only if asked for, secrets never (DESIGN §9)."""
    code, lines, _ = _run(path, capsys, "dump")
    assert (code, [line["lsn"] for line in lines]) == (0, [2, 3, 4])
    assert lines[1]["kind"] == "operation"
    assert lines[1]["method"] == "/bank.Bank/Deposit"
    assert "request" not in lines[1]
    code, lines, _ = _run(path, capsys, "dump", "--contents", "--after", "1", "--tag", "t")
    assert lines[0]["body"] == b"\xff not of a group".hex()
    assert "request" in lines[1]
    assert lines[2] == {"lsn": 4, "tags": ["t"], "bytes": lines[2]["bytes"], "kind": "secrets_put"}
    assert len(_run(path, capsys, "dump", "--limit", "2")[1]) == 2


def test_verify_a_log_that_is_whole(path, capsys):
    """What there is, as one JSON object (DESIGN §7)."""
    code, (found,), _ = _run(path, capsys, "verify")
    assert code == 0
    assert (found["first"], found["tail"], found["entries"], found["tags"]) == (2, 4, 3, {"t": 3})
    assert (found["snapshot_lsn"], found["snapshot_chunks"], found["snapshot_bytes"]) == (1, 2, 8)
    assert found["leadership"]["configuration"] == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM curp_1_entry WHERE lsn=3",
        "UPDATE curp_1_entry SET body=zeroblob(3) WHERE lsn=4",
        "UPDATE curp_1_entry SET tags='' WHERE lsn=3",
        "DELETE FROM curp_1_key WHERE key LIKE 'pieces/%0'",
        "DELETE FROM curp_1_key WHERE key='snapshot'",
    ],
)
def test_verify_finds_damage(path, capsys, statement):
    """An entry, its tags, a chunk or a snapshot that is missing: one line and 1 (§7)."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute(statement).rowcount == 1
    code, lines, error = _run(path, capsys, "verify")
    assert (code, lines) == (1, [])
    assert error.startswith("curp: ")
    assert error.count("\n") == 1


def test_verify_finds_an_index_that_lacks_a_tag(path, capsys):
    """Entries that the index ought to have, by now, are looked for under their tags (§7)."""
    with contextlib.closing(open_engine(f"sqlite:///{path}?group=bank")) as engine:
        Writer(engine).append(*[b"x"] * (UNINDEXED + 1), tags=("t",))
    assert _run(path, capsys, "verify")[0] == 0
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("DELETE FROM curp_1_tag").rowcount == 1
    assert _run(path, capsys, "verify")[0] == 1


def test_a_log_that_is_not_there(tmp_path, capsys):
    """Nothing is made by looking (DESIGN §9)."""
    code, _, error = _run(tmp_path / "none.db", capsys, "verify")
    assert (code, "there is no" in error) == (1, True)
    assert not (tmp_path / "none.db").exists()


def test_verify_on_redis(shared_redis, group):
    """The same on the other engine, its index of tags included (DESIGN §7)."""
    with contextlib.closing(opened_new(shared_redis.url(group=group))) as engine:
        Writer(engine).append(b"a", b"b", tags=("t",))
        assert verify(engine).tags == {"t": 2}
        with shared_redis.client() as client:
            client.zrem(f"curp:{{{group}}}:tag:t", "2")
        with pytest.raises(CorruptLog):
            verify(engine)
