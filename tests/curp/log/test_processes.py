"""Writers in processes of their own, killed and stopped at random (DESIGN §7)."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from curp.log import open_engine
from curp.log._errors import LogUnavailable
from tests.curp.log.histories import check_history, events, read_all
from tests.curp.logs import created
from tests.helpers.processes import Process, started
from tests.helpers.waiting import until

pytestmark = pytest.mark.slow

_MODULE = "tests.curp.log.writer"
_PATIENCE_S = 60.0


@pytest.fixture
def sqlite_url(tmp_path):
    """A log in a file of its own."""
    return created(f"sqlite:///{tmp_path}/log.db?group=bank")


@pytest.fixture(params=["sqlite", "redis", "postgres", "etcd"])
def url(request):
    """A log of its own, of each engine."""
    if request.param == "sqlite":
        return request.getfixturevalue("sqlite_url")
    server = request.getfixturevalue(f"shared_{request.param}")
    return created(server.url(group=request.getfixturevalue("group")))


def state(pid):
    """Return the state of a process: T when it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Replica:
    """A writer that can be started anew, under one name and with one file."""

    def __init__(self, folder, stack, url, name, *arguments):
        self.file = folder / name
        self._arguments = (url, name, str(self.file), *map(str, arguments))
        self._log = folder / f"{name}.log"
        self._stack = stack
        self.process: Process
        self.start()

    def start(self):
        """Start it."""
        self.process = self._stack.enter_context(started(_MODULE, *self._arguments, log=self._log))

    def wait_until_stopped(self):
        """Wait until it has stopped itself."""
        until(lambda: state(self.process.pid) == "T", "it stops", _PATIENCE_S)

    def resume(self):
        """Let it run again."""
        os.kill(self.process.pid, signal.SIGCONT)

    def acknowledged(self):
        """How many appends it had acknowledged."""
        return len(events(self.file, "ack"))

    def wait_for(self, count):
        """Wait until it had so many appends acknowledged."""
        until(
            lambda: self.acknowledged() >= count or not self.process.alive,
            "appends",
            _PATIENCE_S,
        )
        assert self.process.alive, self.process.errors()


@pytest.fixture
def replica(tmp_path):
    """Make replicas, and take them down."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments: Replica(tmp_path, stack, *arguments)


def test_writers_killed_at_random(replica, url):
    """No lost acknowledged append, no duplicate, no gap, after each SIGKILL (DESIGN §7)."""
    chance = random.Random(7)
    replicas = [replica(url, "one"), replica(url, "two")]
    for _ in range(4):
        before = [each.acknowledged() for each in replicas]
        more = chance.randint(2, 30)
        leads = until(
            lambda before=before, more=more: [
                each
                for each, count in zip(replicas, before, strict=True)
                if each.acknowledged() >= count + more
            ],
            "somebody appends",
            _PATIENCE_S,
        )[0]
        leads.process.kill()
        leads.start()
    for each in replicas:
        each.process.kill()
    engine = open_engine(url)
    assert check_history(engine, [each.file for each in replicas]) > 20
    engine.close()


def test_a_stopped_leader_that_wakes_up_is_refused(replica, url):
    """After a take-over its append, already on the way, is not written (DESIGN §7, inv. 4)."""
    zombie = replica(url, "zombie", 5)
    zombie.wait_until_stopped()
    heir = replica(url, "heir")
    heir.wait_for(10)
    zombie.resume()
    until(lambda: events(zombie.file, "deposed"), "the zombie is refused", _PATIENCE_S)
    heir.wait_for(20)
    zombie.process.kill()
    heir.process.kill()
    last_try = events(zombie.file, "try")[5]
    engine = open_engine(url)
    assert not {entry.body.decode() for entry in read_all(engine)} & set(last_try[1:])
    check_history(engine, [zombie.file, heir.file])
    engine.close()


def test_a_writer_stopped_inside_its_transaction(tmp_path, sqlite_url):
    """It keeps the file to itself: others wait, fail by type, and lose nothing (DESIGN §7)."""
    with started("tests.curp.log.locker", sqlite_url, log=tmp_path / "log") as locker:
        until(lambda: state(locker.pid) == "T", "it stops", _PATIENCE_S)
        engine = open_engine(sqlite_url + "&timeout_s=0.1")
        with pytest.raises(LogUnavailable):
            engine.take_leadership("two", "", term_s=1)
        assert engine.leadership() is None
        os.kill(locker.pid, signal.SIGCONT)
        assert locker.wait() == 0
        assert engine.take_leadership("two", "", term_s=1) == 2
        engine.close()


def test_redis_killed_and_restarted_under_its_writers(replica, own_redis):
    """With appendfsync always nothing acknowledged is lost, and lost replies are settled (§7)."""
    _restarted_under_its_writers(replica, own_redis, "bank", own_redis.stop, 3)


@pytest.mark.parametrize("end", ["crash", "kill"])
def test_postgresql_crashed_and_restarted_under_its_writers(replica, own_postgres, group, end):
    """By SIGQUIT, or SIGKILL of its first process: nothing acknowledged is lost (DESIGN §7)."""
    _restarted_under_its_writers(replica, own_postgres, group, getattr(own_postgres, end), 1)


def _restarted_under_its_writers(replica, server, group, end, times):
    url = created(server.url(group=group, timeout_s=10))
    replicas = [replica(url, "one"), replica(url, "two")]
    for turn in range(1, times + 1):
        until(
            lambda turn=turn: sum(each.acknowledged() for each in replicas) >= 10 * turn,
            "appends",
            _PATIENCE_S,
        )
        end()
        server.start()
    before = sum(each.acknowledged() for each in replicas)
    until(lambda: sum(each.acknowledged() for each in replicas) > before, "more", _PATIENCE_S)
    for each in replicas:
        each.process.kill()
    engine = open_engine(url)
    assert check_history(engine, [each.file for each in replicas]) > 10 * times
    engine.close()
