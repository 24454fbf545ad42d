"""A log in the file of a rifl store, which its one server owns (DESIGN-LOG §12, §18)."""

import sqlite3
from contextlib import closing

import pytest

import rifl
from rifl import Deduplicator
from sharedlog._core.producers import append, grant
from sharedlog._engines.driving import carry_out
from sharedlog._engines.sqlite import SqliteEngine, create
from tests.echo import METHOD, served
from tests.helpers.forked import Forked
from tests.helpers.waiting import until
from tests.sharedlog.engines.writer import messages
from tests.sharedlog.logs import TOKEN, texts


def handler(request, context):
    """Write an effect in the call's own transaction."""
    with rifl.transaction(context) as connection:
        connection.execute("INSERT INTO effect VALUES (?)", (request.decode(),))
        rifl.record(context, request, connection)
    return request


def serve(path):
    """A server that owns the store in the file."""
    return Deduplicator(f"sqlite:///{path}", methods={METHOD: "atomic"})


@pytest.mark.parametrize("log_first", [True, False])
def test_a_server_owns_its_store_while_others_append_to_the_log(tmp_path, log_first):
    """They take turns; each keeps all it acknowledged, over restarts of the server too (§12)."""
    path = tmp_path / "store.db"
    if log_first:
        create(path)
    else:
        serve(path).close()
        create(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE effect (name)")
    writing = Forked(
        ["tests.sharedlog.engines.writer", f"sqlite:///{path}", "a", "0.002"], text=True
    )
    engine = SqliteEngine(path)
    try:
        mine = carry_out(engine, grant(TOKEN))
        for restart in range(2):
            with (
                closing(serve(path)) as dedup,
                served(dedup, handler) as target,
                rifl.connect(target) as channel,
            ):
                call = channel.unary_unary(METHOD)
                for number in range(20):
                    name = f"{restart}.{number}".encode()
                    assert call(name, timeout=60) == name
                    seq = 20 * restart + number + 1
                    carry_out(engine, append(mine, seq, messages("b", seq)))
            tail = engine.tail()
            until(lambda tail=tail: engine.tail() > tail + 3, "the other one appends", 60)
    finally:
        writing.kill()
        writing.wait()
        lines = writing.stdout.read().split("\n")[1:-1]
        writing.stdout.close()
    engine.close()
    engine = SqliteEngine(path)
    found = {substream: texts(engine, substream) for substream in (0, 1)}
    engine.close()
    acknowledged = {"a": {int(line.split()[0]) for line in lines}, "b": set(range(1, 41))}
    for name, seqs in acknowledged.items():
        for substream, theirs in found.items():
            kept = [text.split(".") for text in theirs if text[0] == name]
            assert len({tuple(each) for each in kept}) == len(kept)
            assert {seq for seq in seqs if seq % 2 == substream} <= {int(each[1]) for each in kept}
    serve(path).close()
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM effect")]
        assert sorted(names) == sorted(f"{a}.{b}" for a in range(2) for b in range(20))
