"""Players and targets that are killed lose nothing, and double nothing (DESIGN-LOG §15)."""

import math
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

import pytest

import sharedlog
from sharedlog._core.player.rows import all_told
from tests.helpers.forked import Forked
from tests.helpers.ports import free_port
from tests.sharedlog.player.dying_target import KILLS, ran
from tests.sharedlog.player.target_process import METHOD, effects, noted, prepare

pytestmark = pytest.mark.faults


class Processes:
    """Those of one test."""

    def __init__(self, stack, directory, kind, *more, declared=""):
        """``more``: for the target's process; ``declared``: of the target, in the file."""
        self._stack = stack
        self._directory = directory
        self._kind = kind
        self._more = more
        self._port = free_port()
        self._config = directory / "player.toml"
        self._config.write_text(
            f'takeover = 1\n[[target]]\nname = "shop"\naddress = "127.0.0.1:{self._port}"\n'
            f'streams = ["orders"]\nbatch = 5\nqueue = 20\n{declared}'
        )
        self.url = f"sqlite:///{directory / 'log.db'}"

    def _begun(self, *arguments):
        process = Forked(arguments, with_input=True, text=True)
        self._stack.callback(self._end, process)
        assert process.stdout.readline()
        return process

    def target(self):
        """A target, once it listens."""
        where = (str(self._directory), str(self._port))
        module = "tests.sharedlog.player.target_process"
        return self._begun(module, self._kind, *where, *self._more)

    def player(self):
        """A player, once it plays."""
        return self._begun("sharedlog", "play", "--log", self.url, "--config", str(self._config))

    @staticmethod
    def kill(process):
        """At once, with whatever it does."""
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)

    @staticmethod
    def _end(process):
        process.kill()
        process.wait(30)
        process.stdin.close()
        process.stdout.close()


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [("aio", 1), *(pytest.param(each, 8, marks=pytest.mark.long) for each in ("aio", "sync"))],
)
def test_what_is_killed_loses_and_doubles_nothing(kind, rounds, tmp_path, wait_for):
    """The target, then the player that leads, while messages come: effects are the log's (P1)."""
    prepare(tmp_path)
    with ExitStack() as stack:
        processes = Processes(stack, tmp_path, kind)
        log = stack.enter_context(sharedlog.create(processes.url))
        log.stream("orders", 2)
        target, leads, waits = processes.target(), processes.player(), processes.player()
        count = 0

        def publish(some):
            nonlocal count
            for number in range(count, count + some):
                log.publish_call("orders", METHOD, b"%d" % number, key=b"%d" % (number % 5))
            count += some

        for _ in range(rounds):
            publish(40)
            wait_for(lambda: len(effects(tmp_path)) > count - 40)
            processes.kill(target)
            publish(40)
            target = processes.target()
            wait_for(lambda: len(effects(tmp_path)) > count - 40)
            processes.kill(leads)
            publish(40)
            wait_for(lambda: len(effects(tmp_path)) == count)
            leads, waits = waits, processes.player()
        found = effects(tmp_path)
        for number in range(2):
            there = [each.text for each in log.read("orders", number)]
            assert [body for at, body in found if at == number] == there


def test_a_leader_that_was_only_stopped_does_nothing_once_it_goes_on(tmp_path, wait_for):
    """Continued while another one leads, it calls nothing twice, and leaves nothing out (P5)."""
    prepare(tmp_path)
    with ExitStack() as stack:
        processes = Processes(stack, tmp_path, "aio")
        log = stack.enter_context(sharedlog.create(processes.url))
        log.stream("orders", 2)
        processes.target()
        players = [processes.player(), processes.player()]

        def publish(first, count):
            for number in range(first, first + count):
                log.publish_call("orders", METHOD, b"%d" % number, key=b"%d" % (number % 5))

        def leads():
            found = [told.process for told in told_of(log).values() if told.process]
            return found[0].rpartition(":")[2] if found else ""

        publish(0, 40)
        wait_for(lambda: len(effects(tmp_path)) == 40)
        wait_for(leads)
        for at in range(2):
            # Each of the two leads once, and is stopped with whatever it does.
            (stopped,) = [each for each in players if str(each.pid) == leads()]
            publish(40 + 80 * at, 20)
            os.kill(stopped.pid, signal.SIGSTOP)
            publish(60 + 80 * at, 20)
            wait_for(lambda before=str(stopped.pid): leads() not in ("", before))
            wait_for(lambda count=80 * (at + 1): len(effects(tmp_path)) == count)
            os.kill(stopped.pid, signal.SIGCONT)
            publish(80 + 80 * at, 40)
            wait_for(lambda count=120 + 80 * at: len(effects(tmp_path)) == count)
        found = effects(tmp_path)
        for number in range(2):
            there = [each.text for each in log.read("orders", number)]
            assert [body for at, body in found if at == number] == there


def told_of(log):
    """What players tell of their targets."""
    return log._place.run(all_told("player"))


@pytest.mark.parametrize(
    ("kind", "method", "store"),
    [
        ("aio", "atomic", "sqlite"),
        ("sync", "idempotent", "redis"),
        pytest.param("sync", "atomic", "sqlite", marks=pytest.mark.long),
        pytest.param("aio", "idempotent", "redis", marks=pytest.mark.long),
    ],
)
def test_a_message_that_kills_its_process_is_found_by_halves(
    kind, method, store, tmp_path, house, name, request
):
    """Of 20 in flight: four deaths, and its own; no other one is given up (P7)."""
    prepare(tmp_path)
    url = f"sqlite:///{tmp_path / 'target.db'}"
    if store == "redis":
        server = request.getfixturevalue("shared_redis")
        url = server.url(namespace=name, beat_s=0.05, dead_after_s=0.3)
    log, tries, count, where = house.log, 3, 20, free_port()
    killer = 15
    for number in range(count):
        body = KILLS if number == killer else b"%d" % number
        log.publish_call("orders", METHOD, body, key=b"%d" % (number % 5))
    command = [sys.executable, "-m", "tests.sharedlog.player.dying_target"]
    target = subprocess.Popen(
        [*command, kind, str(tmp_path), str(where), method, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        shop = sharedlog.Target(
            name="shop",
            address=f"127.0.0.1:{where}",
            streams=["orders"],
            tries=tries,
            failed="dead-letter",
        )
        player = house.player(shop)
        house.told_that(player, lambda told: told.dead_letters == 1 and not told.lag)
        assert player.targets()["shop"].limit == 0
    finally:
        told, _ = target.communicate()
    deaths = told.count("lives") - 1
    assert deaths <= int(math.log2(count)) + tries
    runs = Counter(ran(tmp_path))
    assert runs.pop(KILLS.decode()) == deaths
    assert max(runs.values()) <= int(math.log2(count)) + 1
    done = effects(tmp_path) if method == "atomic" else noted(tmp_path)
    wanted = {str(number) for number in range(count)} - {str(killer)}
    assert {body for _, body in done} == wanted
    if method == "atomic":
        assert len(done) == len(wanted)
    (letter,) = [each for at in range(8) for each in log.read("deadletters", at)]
    assert b"process ended" in letter.headers["reason"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["aio", "sync"])
@pytest.mark.parametrize("store", ["redis", "postgres"])
@pytest.mark.parametrize("method", ["idempotent", "plain"])
def test_what_is_killed_over_shared_stores_leaves_what_was_declared(
    kind, store, method, tmp_path, wait_for, name, request
):
    """Idempotent ones run at least once, plain ones at most once, or are dead letters (P1, P7)."""
    server = request.getfixturevalue(f"shared_{store}")
    url = server.url(namespace=name) if store == "redis" else server.url(schema=name)
    with ExitStack() as stack:
        processes = Processes(
            stack, tmp_path, kind, method, url, declared='unknown = "dead-letter"\n'
        )
        log = stack.enter_context(sharedlog.create(processes.url))
        log.stream("orders", 2)
        target, leads, waits = processes.target(), processes.player(), processes.player()
        count = 0

        def publish(some):
            nonlocal count
            for number in range(count, count + some):
                log.publish_call("orders", METHOD, b"%d" % number, key=b"%d" % (number % 5))
            count += some

        def buried():
            if not any(each.name == "deadletters" for each in log.streams()):
                return []
            return [each for at in range(8) for each in log.read("deadletters", at)]

        def settled():
            return len({*noted(tmp_path)}) + len(buried()) >= count

        for _ in range(4):
            publish(40)
            wait_for(lambda: len(noted(tmp_path)) > count - 40)
            processes.kill(target)
            publish(40)
            target = processes.target()
            wait_for(lambda: len(noted(tmp_path)) > count - 40)
            processes.kill(leads)
            publish(40)
            wait_for(settled)
            leads, waits = waits, processes.player()
        # Some dead letter may be of a message that ran: nobody knew.
        wait_for(lambda: all(told.lag == 0 for told in told_of(log).values()))
        found, given_up = noted(tmp_path), {each.headers["position"] for each in buried()}
        for number in range(2):
            there = list(log.read("orders", number))
            ran = [body for at, body in found if at == number]
            first = list(dict.fromkeys(ran))
            expected = [each.text for each in there if each.text in first]
            assert first == expected
            lost = [each for each in there if each.text not in first]
            assert {str(each.position).encode() for each in lost} <= given_up
            if method == "plain":
                assert ran == first
            else:
                assert not given_up
