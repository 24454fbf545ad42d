"""A process that others take over from: it has ended, or nothing proves it (T1, T5)."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest

import sharedlog
from sharedlog._consumer import evidence
from sharedlog._consumer.hanging import Hanging
from sharedlog._consumer.tables import SQLITE, Table
from sharedlog._core.consumer.checkpoint import Checkpoint
from sharedlog._core.consumer.members import Gone, term_s
from tests.helpers.forked import Forked
from tests.sharedlog.consumer import holding_process


def waiting():
    """A process that says its name as one of a consumer's, and waits."""
    code = (
        "import sys; from sharedlog._consumer.evidence import new_who; "
        "print(new_who(), flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def effects(log):
    """What was done, in order."""
    return [each.text for each in log.read("effects", 0)]


def test_a_process_of_this_machine_is_known_to_have_ended():
    """While it runs, and while it is suspended, it has not; killed, it has before it is reaped."""
    process = waiting()
    try:
        who = process.stdout.readline().strip()
        assert not evidence.has_ended(who)
        os.kill(process.pid, signal.SIGSTOP)
        assert not evidence.has_ended(who)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert evidence.has_ended(who)
    finally:
        process.kill()
        process.communicate()
    assert evidence.has_ended(who)
    assert not evidence.has_ended(evidence.new_who())


@pytest.mark.parametrize("part", ["boot", "namespace", "start"])
def test_what_is_of_another_machine_is_not_known(part):
    """Another boot or namespace proves nothing; another start says that the pid is used again."""
    token, boot, namespace, pid, start = evidence.new_who().split(".")
    other = {"boot": boot, "namespace": namespace, "start": start} | {part: "1"}
    who = ".".join((token, other["boot"], other["namespace"], pid, other["start"]))
    assert evidence.has_ended(who) is (part == "start")
    gone = ".".join((token, other["boot"], other["namespace"], str(2**22 + 1), other["start"]))
    assert evidence.has_ended(gone) is (part == "start")
    assert not evidence.has_ended(token)


def test_what_interrupts_an_attempt_is_counted_apart():
    """In the checkpoint as in the tables: the first take-over has the message come alone (T5)."""
    table = Table("billing", SQLITE)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(table.create)
    checkpoint = Checkpoint(0)
    course = [
        (Gone.TAKEN, 1, False),
        (Gone.TAKEN, 2, False),
        (Gone.DIED, 3, False),
        (Gone.LEFT, 3, False),
        (Gone.TAKEN, 4, False),
        (Gone.TAKEN, 1, True),
        (Gone.DIED, 1, False),
    ]
    for number, (gone, noted, anew) in enumerate(course, 1):
        found = table.take(connection.execute, "orders/0", number, gone=gone, anew=anew)
        checkpoint = checkpoint.taken(gone, anew=anew)._replace(number=number)
        assert found == checkpoint
        table.note(connection.execute, "orders/0", number, noted)
        checkpoint = checkpoint._replace(attempts=noted)
    assert checkpoint.interrupted == 0
    connection.close()


def test_the_lease_follows_the_longest_run():
    """Up to five seconds; a run counts until a minute has passed, and while it lasts (T1)."""
    assert [term_s(1.2, run_s) for run_s in (0.0, 0.6, 1.0, 3.0, 60.0)] == [1.2, 1.2, 2.0, 5.0, 5.0]
    assert term_s(30.0, 3.0) == 30.0
    now_s = [600.0]
    hanging = Hanging("log", "billing", lambda: now_s[0])
    hanging.begin("bill", "orders/0", None)
    now_s[0] += 3
    assert hanging.longest_s() == 3
    hanging.end()
    now_s[0] += 60
    assert hanging.longest_s() == 3
    now_s[0] += 120
    assert hanging.longest_s() == 0


def test_a_handler_that_holds_the_interpreter_is_not_buried(tmp_path):
    """For three seconds, with two processes and a lease of 1.2: it comes to its end, once (T5)."""
    url = holding_process.prepare(tmp_path)
    command = ["tests.sharedlog.consumer.holding_process", str(tmp_path)]
    with sharedlog.open(url) as log, ExitStack() as stack:
        processes = [
            stack.enter_context(Forked([*command, "3"], with_input=True)) for _ in range(2)
        ]
        try:
            for each in processes:
                assert each.stdout.readline()
            log.publish("orders", "holds", key="a")
            log.publish("orders", "next", key="a")
            end, waits = time.monotonic() + 120, threading.Event()
            while effects(log) != ["holds", "next"]:
                assert time.monotonic() < end, effects(log)
                waits.wait(0.1)
        finally:
            for each in processes:
                each.kill()
        assert list(log.read("dead", 0)) == []
    # Each process that began with it had it taken away at most.
    assert holding_process.begun(tmp_path).count("holds") <= 8


def test_a_process_that_is_killed_by_a_message_counts(tmp_path):
    """Each death is an attempt, as it is evident: after two the message is a dead letter (T5)."""
    url = holding_process.prepare(tmp_path)
    command = ["tests.sharedlog.consumer.holding_process", str(tmp_path)]
    with sharedlog.open(url) as log:
        log.publish("orders", "kills", key="a")
        log.publish("orders", "next", key="a")
        for _ in range(4):
            with Forked([*command, "0"], with_input=True) as process:
                try:
                    waits = threading.Event()
                    while process.poll() is None and effects(log) != ["next"]:
                        waits.wait(0.05)
                finally:
                    process.kill()
        assert effects(log) == ["next"]
        (letter,) = log.read("dead", 0)
    assert letter.headers["dead-letter-error"] == b"the process ended while it ran, each time"
    # Once among others, and twice alone.
    assert holding_process.begun(tmp_path).count("kills") <= 3
