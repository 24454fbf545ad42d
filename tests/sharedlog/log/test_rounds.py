"""Rounds of a log's processes, which take turns (DESIGN-LOG §12, L4)."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta

import sharedlog
from sharedlog._log.rounds import Rounds
from tests.helpers.waiting import until


def test_who_is_stopped_in_its_turn_does_nothing_more_under_it(tmp_path):
    """SIGSTOP, another one takes over, SIGCONT: what it was about is refused (L4)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"

    def start(stack, *arguments):
        command = [sys.executable, "-m", "tests.sharedlog.log.dutiful", url, *arguments]
        process = stack.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.kill)
        return process

    with sharedlog.create(url) as log, ExitStack() as stack:
        log.stream("s", 1, timedelta(0))
        for number in range(10):
            log.publish("s", f"{number}")
        stopped = start(stack, "60", "stops")
        os.waitpid(stopped.pid, os.WUNTRACED)
        # It leaves the last message alone: where nothing is to be trimmed, nothing is refused.
        other = start(stack, "0.2", "once")
        assert other.stdout.readline() == "trimmed 2\n"
        assert len(log.follow("s").poll()) == 1
        log.publish("s", "last")
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.stdout.readline() == "fenced 1\n"
        # It has noticed, and waits for its own patience.
        for process in (stopped, other):
            process.stdin.close()
            assert process.wait(30) == 0
        assert "trimmed" not in stopped.stdout.read()


def test_an_error_that_does_not_pass_gives_the_duty_up():
    """Another process can do it at once; this one stands again when its patience is over (L4)."""
    with sharedlog.create("memory:") as log:
        failed, done = [], []

        def refuse(fence, now_s):
            raise sharedlog.NewerFormat("only a newer release reads this")

        sick = Rounds(log._place, "work", 0.01, 3600.0, refuse, failed.append)
        well = Rounds(log._place, "work", 0.01, 3600.0, lambda *_: done.append(_), failed.append)
        sick.start()
        try:
            until(lambda: failed and not sick.works, "it failed, and gave its duty up")
            well.round()
            assert (len(failed), len(done), well.works) == (1, 1, True)
        finally:
            for each in (sick, well):
                each.close()
