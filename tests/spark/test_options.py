"""The sinks' options: what is asked for, and what is refused (DESIGN §8)."""

from __future__ import annotations

import pickle

import pytest

from rifl.spark._driver import WriteDriver
from rifl.spark._errors import PlanError, SparkError
from rifl.spark._options import WriteOptions, seconds
from tests.helpers.wire import SECRET, Wire

_LEAST = {"target": "host:1", "method": "/a.B/C", "key": "id"}


def test_options_are_read_in_any_case() -> None:
    """Spark gives names in any case; the least has sensible bounds (DESIGN §8)."""
    options = WriteOptions.read(
        {
            "TARGET": "host:1",
            "Method": "/a.B/C",
            "key": " shard , offset ",
            "batchrows": "100",
            "batchBytes": "64k",
            "timeout": "250ms",
            "retention": "7d",
            "checkpointLocation": "/c",
            "metadataEnv.authorization": "TOKEN",
            "metadataFile.x-team": "/run/team",
        }
    )
    assert options.key == ("shard", "offset")
    assert (options.batch_rows, options.batch_bytes, options.timeout_s) == (100, 65536, 0.25)
    assert options.retention_s == 7 * 86400
    assert options.connection.metadata == (
        ("authorization", "env:TOKEN"),
        ("x-team", "file:/run/team"),
    )
    assert not options.connection.tls
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own bytes
    assert WriteOptions.read({**_LEAST, "key": '["a, b", "c"]'}).key == ("a, b", "c")
    for fields in ("txn=reference, amt = cents", '{"txn": "reference", "amt": "cents"}'):
        read = WriteOptions.read({**_LEAST, "fields": fields})
        assert read.fields == (("txn", "reference"), ("amt", "cents"))
    made = WriteOptions.of("host:1", "/a.B/C", "id", {"fields": {"txn": "reference"}})
    assert (made.key, made.fields) == (("id",), (("txn", "reference"),))
    assert WriteOptions.read({**_LEAST, "tlsRootsFile": "/ca.pem"}).connection.tls


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"target": ""}, "no target"),
        ({"method": ""}, "no method"),
        ({"batchrow": "1"}, "unknown option 'batchrow'"),
        ({"path": "/x"}, "take no path"),
        ({"metadata.authorization": "secret"}, "environment"),
        ({"batchRows": "0"}, "positive"),
        ({"batchRows": "many"}, "no number"),
        ({"inFlight": "17"}, "at most 16"),
        ({"rowsPerSecond": "0"}, "rows a second"),
        ({"timeout": "soon"}, "not a time"),
        ({"session": "daily#5"}, "numbered"),
        ({"closeSession": "true"}, "your own name"),
        ({"name": "a", "session": "b"}, "one of them"),
        ({"name": "a#b"}, "64 characters"),
        ({"batchId": "7"}, "goes with a name"),
        ({"batchId": "7", "session": "b"}, "goes with a name"),
        ({"batchId": "-1", "name": "a"}, "that foreachBatch gives"),
        ({"adopt": "yes"}, "true or false"),
        ({"key": "[1]"}, "no list of names"),
        ({"fields": "txn"}, "no list such as"),
        ({"fields": "a=b,a=c"}, "named twice"),
        ({"fields": '{"a": 1}'}, "no list such as"),
        ({"descriptorFile": "/a", "module": "b"}, "one of them"),
        ({"tlsCertFile": "/a"}, "go together"),
        ({"tls": "false", "tlsRootsFile": "/a"}, "TLS files"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, str], says: str) -> None:
    """A bad option is an error before anything is sent, and shows no secret (DESIGN §8)."""
    with pytest.raises(PlanError, match=says) as caught:
        WriteOptions.read({**_LEAST, **given})
    assert "secret" not in str(caught.value)


def test_times() -> None:
    """Times are numbers with a unit, seconds without (DESIGN §8)."""
    assert [seconds(text) for text in ("90", "1.5s", "2m", "12h", "1d", "5 ms")] == [
        90,
        1.5,
        120,
        43200,
        86400,
        0.005,
    ]
    for bad in ("", "0", "-1s", "1w", "s"):
        with pytest.raises(ValueError, match="not a time"):
            seconds(bad)


def test_a_sessions_secret_leaves_no_driver_in_plaintext_unless_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused before anything is sent; the option permits it (DESIGN §8)."""
    monkeypatch.setenv("RIFL_SESSION_SECRET", SECRET)
    wire = Wire()
    given = {**_LEAST, "target": f"0.0.0.0:{wire.port}"}
    for options in (given, {**given, "plaintextSecrets": "true"}):
        with WriteDriver(WriteOptions.read(options).connection, 10.0) as driver:
            with pytest.raises(SparkError) as opening:
                driver.open_session("s", None, None)
            with pytest.raises(SparkError) as closing:
                driver.close_session("s")
        for refused in (opening, closing):
            assert ("plaintextSecrets" in str(refused.value)) is (options is given)
        assert wire.shown is (options is not given)
    wire.close()
