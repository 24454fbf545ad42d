"""A writer that is stopped hinders nobody, and writes nothing late (DESIGN-LOG §12, L4)."""

import os
import signal
import time
from datetime import timedelta

import pytest

import sharedlog
from tests.helpers.forked import Forked
from tests.helpers.waiting import until
from tests.sharedlog.places import SHARED, url_of
from tests.sharedlog.reads import texts


def _stopped(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("engine", SHARED)
def test_a_writer_that_is_stopped_is_judged_when_it_wakes(engine, tmp_path, request):
    """SIGSTOP before its append is judged: others go on, and one of them takes its fence."""
    url = url_of(engine, tmp_path, request.getfixturevalue)
    with sharedlog.create(url) as log:
        log.stream("s", 1)
        fence = log.raise_fence("writer")
        assert fence.number == 1
        writer = Forked(["tests.sharedlog.log.hanging_writer", url, "writer"])
        try:
            assert writer.stdout.readline().startswith(b"told ")
            until(lambda: _stopped(writer.pid), "it stops")
            other = log.producer(fence=log.raise_fence("writer"))
            for number in range(5):
                other.publish("s", f"other {number}")
            os.kill(writer.pid, signal.SIGCONT)
            assert writer.stdout.readline() == b"fenced False\n"
            assert writer.stdout.readline().startswith(b"told ")
        finally:
            writer.kill()
            writer.stdout.close()
            writer.wait(30)
        assert sorted(texts(log, "s")) == [
            "after it",
            "first",
            *(f"other {each}" for each in range(5)),
        ]


@pytest.mark.parametrize("end", ["SIGCONT", "SIGKILL"])
def test_a_writer_that_is_stopped_with_the_lock_of_the_file_holds_up_and_loses_nothing(
    end, tmp_path
):
    """Others read on, are told in time that nothing of theirs is there, and go on after it (L2)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with sharedlog.create(url) as made:
        made.stream("s", 1)
    patience = timedelta(seconds=0.2)
    with sharedlog.open(url, timeout=patience) as log, log.follow("s") as following:
        writer = Forked(["tests.sharedlog.log.locking_writer", url])
        try:
            assert writer.stdout.readline() == b"told 1\n"
            until(lambda: _stopped(writer.pid), "it stops")
            assert [each.text for each in following.poll(30)] == ["first"]
            began = time.monotonic()
            with pytest.raises(sharedlog.LogUnavailable, match=f"process {writer.pid} ") as told:
                log.publish("s", "other")
            assert time.monotonic() - began < 15
            with pytest.raises(sharedlog.LogUnavailable), log.producer().transaction() as both:
                both.publish("s", "never")
            assert (told.value.appended, both.committed) == (False, False)
            assert texts(log, "s") == ["first"]
            os.kill(writer.pid, getattr(signal, end))
            if end == "SIGCONT":
                assert writer.stdout.readline() == b"told 2\n"
        finally:
            writer.kill()
            writer.stdout.close()
            writer.wait(30)
    with sharedlog.open(url) as log:
        log.publish("s", "behind")
        held_up = ["held up"] if end == "SIGCONT" else []
        assert [each.text for each in log.read("s", 0)] == ["first", *held_up, "behind"]
