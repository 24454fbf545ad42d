"""On a Mac clients, stores, logs, consumers and the test kit work (README).

Tried on Linux, by tests that run where what Linux alone has is gone (``mac/sitecustomize.py``).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_MAC = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent / "mac"), str(_ROOT))),
}
# Servers of databases are as elsewhere.
_HERE = ("-k", "not etcd and not postgres and not redis and not mariadb and not mysql")
# What is its own on a Mac, locks, a log, a consumer, and the test kit.
_SOME = (
    "tests/ground/test_system.py",
    "tests/stores/test_names_of_files.py",
    "tests/sharedlog/engines/test_sqlite_fairness.py",
    "tests/sharedlog/engines/test_terms.py",
    "tests/sharedlog/consumer/test_members.py",
    "tests/calls/test_testing_kit.py",
)
_MANY = (
    *("tests/ground", "tests/stores", "tests/client", "tests/calls", "tests/curp/witness"),
    *("tests/sharedlog/engines", "tests/sharedlog/log", "tests/sharedlog/consumer"),
)
_HANGING = "tests/sharedlog/log/test_hanging_writers.py"
_LINUX_ALONE = (
    # Who has the file's lock is not known.
    "tests/sharedlog/engines/test_sqlite.py::test_a_file_that_others_hold_too_long_is_unavailable",
    "tests/sharedlog/log/test_append_in_sqlite.py::"
    "test_who_publishes_beside_its_own_transaction_is_told_in_time",
    # Nor that a consumer's process has ended: its lease has to.
    *(
        f"tests/sharedlog/consumer/test_taken_over.py::test_{name}"
        for name in (
            "a_process_of_this_machine_is_known_to_have_ended",
            "what_is_of_another_machine_is_not_known",
            "a_process_that_is_killed_by_a_message_counts",
        )
    ),
    # mypy itself needs what is gone.
    "tests/calls/test_policies.py::test_mypy_takes_what_the_docs_write",
    # These look into /proc themselves.
    f"{_HANGING}::test_a_writer_that_is_stopped_is_judged_when_it_wakes",
    f"{_HANGING}::test_a_writer_that_is_stopped_with_the_lock_of_the_file_holds_up_and_loses_nothing",
)

_IS_A_MAC = """
import ctypes, fcntl, os, socket, subprocess, sys
from pathlib import Path
from _rifl_ground import system
from sharedlog._consumer.evidence import has_ended, new_who
assert system.MAC and not system._LINUX
assert not any(map(hasattr, (fcntl, os, os), ("F_OFD_SETLK", "pipe2", "pidfd_open")))
assert system.watch_writes(Path(__file__ if "__file__" in globals() else ".")) is None
assert system.process_of(os.getpid()) is None and system.kernels_locks() == []
assert len(system.boot()) == 36 and system.boot() != system._alone
who = new_who()
assert "." not in who and not has_ended(who)
for place in ("/proc/self/stat", "/dev/shm/a"):
    try:
        open(place, "a")
    except FileNotFoundError:
        continue
    raise AssertionError(place)
for name in ("\\0abstract", "/tmp/" + 100 * "a"):
    with socket.socket(socket.AF_UNIX) as made:
        try:
            made.bind(name)
        except OSError:
            continue
    raise AssertionError(name)
if len(sys.argv) == 1:
    print(system.boot(), end=" ", flush=True)
    subprocess.run([sys.executable, "-c", sys.orig_argv[2], "child"], check=True)
else:
    print(system.boot())
"""

_FULL_SYNCS = """
import fcntl, sqlite3, sys
from pathlib import Path
import rifl, sharedlog
from curp.witness import WitnessJournal
from rifl._stores.sqlite.record_row import _FILE

def syncs(step):
    before = fcntl.full_syncs
    step()
    return fcntl.full_syncs - before

def settings(connection):
    return [connection.execute(f"PRAGMA {each}").fetchone()[0] for each in (
        "fullfsync", "checkpoint_fullfsync")]

folder = Path(sys.argv[1])
dedup, log = [], []
journal = WitnessJournal(folder)
assert syncs(lambda: dedup.append(rifl.Deduplicator(f"sqlite:///{folder}/a.db")))
assert syncs(lambda: dedup[0].close())
assert syncs(lambda: log.append(sharedlog.create(f"sqlite:///{folder}/b.db")))
assert settings(log[0]._place.engine._file._writer) == [1, 1]
log[0].close()
assert syncs(lambda: journal.write("group", 1)) == 1
journal.close()
mine = sqlite3.connect(folder / "a.db")
assert mine.execute(_FILE).fetchone()[1] == 0
mine.execute("PRAGMA fullfsync=ON")
assert mine.execute(_FILE).fetchone()[1] == 2
"""


def run(*arguments):
    """Run Python on the Mac; return what it wrote."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=_ROOT, env=_MAC, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pytest_on_the_mac(*arguments):
    """Run tests there."""
    return run("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


def test_it_is_a_mac_in_each_process():
    """What Linux alone has is gone, and all processes know the machine's boot (DESIGN §7)."""
    mine, childs = run("-c", _IS_A_MAC).split()
    assert mine == childs


def test_what_is_durable_is_synced_in_full(tmp_path):
    """Notes, folders, journals and SQLite's files; a connection without it is not relied on."""
    run("-c", _FULL_SYNCS, str(tmp_path))


def test_some_of_the_tests():
    """Those of what is its own there, of a log, a consumer, and the test kit."""
    assert " passed" in pytest_on_the_mac(*_HERE, *_SOME)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_of_the_tests():
    """Those of clients, stores, logs and consumers, but for what is Linux' alone."""
    left_out = [f"--deselect={each}" for each in _LINUX_ALONE]
    assert " passed" in pytest_on_the_mac("-n", "2", *_HERE, *left_out, *_MANY)
