"""A writer that is stopped hinders nobody, and writes nothing late (DESIGN-LOG §12, L4)."""

import os
import signal

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
