"""Players and targets that are killed lose nothing, and double nothing (DESIGN-LOG §15)."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

import sharedlog
from tests.helpers.ports import free_port
from tests.sharedlog.player.target_process import METHOD, effects, prepare


class Processes:
    """Those of one test."""

    def __init__(self, stack, directory, kind):
        self._stack = stack
        self._directory = directory
        self._kind = kind
        self._port = free_port()
        self._config = directory / "player.toml"
        self._config.write_text(
            f'takeover = 1\n[[target]]\nname = "shop"\naddress = "127.0.0.1:{self._port}"\n'
            'streams = ["orders"]\nbatch = 5\nqueue = 20\n'
        )
        self.url = f"sqlite:///{directory / 'log.db'}"

    def _begun(self, *arguments):
        command = [sys.executable, "-m", *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._stack.callback(self._end, process)
        assert process.stdout.readline()
        return process

    def target(self):
        """A target, once it listens."""
        where = (str(self._directory), str(self._port))
        return self._begun("tests.sharedlog.player.target_process", self._kind, *where)

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
