"""A log is created on purpose, and opened as what it is (DESIGN-LOG §12)."""

import pickle
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._core.catalog import MAX_SUBSTREAMS
from sharedlog._core.commit import Commit, Put
from sharedlog._log.restoring import accept_loss
from sharedlog.v1 import sharedlog_pb2 as pb
from tests.helpers.waiting import until


def test_a_log_that_was_created_is_opened_with_its_incarnation(url):
    """Two handles are of one log; a new log is of another incarnation (DESIGN-LOG §12)."""
    with sharedlog.create(url) as made, sharedlog.open(url) as found:
        assert made.incarnation == found.incarnation
        made.stream("orders", 4)
        assert found.streams() == [sharedlog.Stream("orders", 4, timedelta(days=1))]
    with sharedlog.create("memory:") as other:
        assert other.incarnation != made.incarnation


def test_nothing_is_created_twice_nor_by_opening(url):
    """An empty volume is an error, not a new log (DESIGN-LOG §12)."""
    for _ in range(2):
        with pytest.raises(sharedlog.NoSuchLog):
            sharedlog.open(url)
    sharedlog.create(url).close()
    with pytest.raises(sharedlog.LogExists, match="open it"):
        sharedlog.create(url)
    sharedlog.open(url).close()


def test_the_incarnation_that_is_expected_is_held(url):
    """Another one is a fork, and says so (DESIGN-LOG §12)."""
    with sharedlog.create(url) as made:
        sharedlog.open(url, incarnation=made.incarnation).close()
        with pytest.raises(sharedlog.LogForked, match=made.incarnation):
            sharedlog.open(url, incarnation="0" * 16)


@pytest.mark.parametrize("key", ["log/format", "stream/s"])
def test_what_a_newer_release_wrote_is_refused(log, url, key):
    """And left as it is (DESIGN-LOG §12)."""
    newer = b"2" if key == "log/format" else pb.Stream(version=2).SerializeToString()
    log._engine.commit(Commit(puts=(Put(key, newer),)))
    with pytest.raises(sharedlog.NewerFormat):
        sharedlog.open(url).stream("s")


@pytest.mark.parametrize("value", [b"\xff\xff", b"", pb.Stream(version=1).SerializeToString()])
def test_what_is_kept_of_a_stream_is_checked(log, value):
    """It is never taken for another stream (DESIGN-LOG §12)."""
    log._engine.commit(Commit(puts=(Put("stream/s", value),)))
    with pytest.raises(sharedlog.CorruptLog):
        log.stream("s")


def test_other_files_are_no_logs(tmp_path):
    """Neither an empty one, nor one of another program, nor bytes: those never (DESIGN-LOG §12)."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(sharedlog.NoSuchLog):
        sharedlog.open(f"sqlite:///{file}")
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE t (a)")
    connection.close()
    with pytest.raises(sharedlog.NoSuchLog):
        sharedlog.open(f"sqlite:///{file}")
    file.write_bytes(b"some text, " * 100)
    for use in (sharedlog.open, sharedlog.create):
        with pytest.raises(sharedlog.CorruptLog):
            use(f"sqlite:///{file}")


@pytest.mark.parametrize(
    "url", ["", "orders.log", "mysql://h", "sqlite:///", "sqlite:///:memory:", "sqlite:///f?a=b"]
)
def test_other_urls_are_refused(url):
    """Before anything is asked (DESIGN-LOG §12)."""
    for use in (sharedlog.create, sharedlog.open):
        with pytest.raises(sharedlog.InvalidRequest):
            use(url)


def test_a_log_where_none_can_be_is_unavailable(tmp_path):
    """A directory that is not there is not made (DESIGN-LOG §12)."""
    with pytest.raises(sharedlog.LogUnavailable):
        sharedlog.create(f"sqlite:///{tmp_path}/none/log.db")


def test_a_stream_is_made_once_and_keeps_its_substreams(log):
    """What is not said is as it is found; another number would tear keys apart (DESIGN-LOG §12)."""
    assert log.stream("orders") == sharedlog.Stream("orders", 8, timedelta(days=1))
    made = log.stream("few", 3, timedelta(hours=2))
    assert log.stream("few") == log.stream("few", 3) == made
    with pytest.raises(sharedlog.InvalidRequest, match="3 substreams, not 4"):
        log.stream("few", 4)
    with pytest.raises(sharedlog.InvalidRequest, match="2:00:00"):
        log.stream("few", retention=timedelta(hours=3))
    assert [each.name for each in log.streams()] == ["few", "orders"]


@pytest.mark.parametrize(
    ("name", "substreams", "days"),
    [
        ("", None, None),
        ("a/b", None, None),
        ("é", None, None),
        ("-a", None, None),
        ("a" * 181, None, None),
        ("a\n", None, None),
        ("s", 0, None),
        ("s", MAX_SUBSTREAMS + 1, None),
        ("s", None, -1),
        ("s", None, 40_000),
    ],
)
def test_streams_have_bounds(log, name, substreams, days):
    """Nothing is made of what is beyond them (DESIGN-LOG §12)."""
    with pytest.raises(sharedlog.InvalidRequest):
        log.stream(name, substreams, None if days is None else timedelta(days=days))
    assert log.streams() == []


def test_a_closed_log_says_so(log):
    """Closing again is nothing (DESIGN-LOG §12)."""
    log.close()
    log.close()
    with pytest.raises(sharedlog.LogUnavailable, match="closed"):
        log.streams()


def test_public_errors_pickle_and_say_whether_it_was_appended():
    """All of them are ``LogError``s (DESIGN-LOG §12, L3)."""
    found = [getattr(sharedlog, name) for name in sharedlog.__all__]
    errors = [each for each in found if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) >= 19
    for kind in errors:
        assert issubclass(kind, sharedlog.LogError)
        error = kind("why", 7) if "__init__" in vars(kind) else kind("why")
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        assert (type(copy), str(copy), copy.appended) == (kind, "why", kind.appended)


def test_an_unknown_scheme_is_told_with_those_there_are():
    """The served log's, too, which is neither made nor mended over gRPC (§12)."""
    known = "memory: sqlite:///FILE redis://HOST etcd://HOST postgresql://HOST/ grpc://HOST:PORT"
    for door in (sharedlog.open, sharedlog.create):
        with pytest.raises(sharedlog.InvalidRequest, match="'foo' is no log's scheme") as caught:
            door("foo://host")
        assert [each for each in known.split() if each not in str(caught.value)] == []
    for elsewhere in ("grpc://h:1", "grpcs://h:1"):
        with pytest.raises(sharedlog.InvalidRequest, match="not over gRPC"):
            accept_loss(elsewhere, timedelta(0))


@pytest.mark.parametrize(("engine", "end"), [("redis", "stop"), ("postgres", "crash")])
def test_a_log_whose_server_starts_is_waited_for(engine, end, request, name, caplog):
    """``open`` asks again within its timeout, says why once, and raises what it is without one."""
    server = request.getfixturevalue(f"own_{engine}")
    url = server.url(log=name)
    sharedlog.create(url).close()
    getattr(server, end)()
    with ThreadPoolExecutor(1) as pool:
        try:
            with pytest.raises(sharedlog.LogUnavailable):
                sharedlog.open(url, timeout=timedelta(0))
            assert "log_not_open_yet" not in caplog.text
            opening = pool.submit(sharedlog.open, url)
            until(lambda: "log_not_open_yet" in caplog.text, "it was refused")
        finally:
            server.start()
        with opening.result() as log:
            assert log.streams() == []
    assert caplog.text.count("log_not_open_yet") == 1
