"""Names, locks, syncs and boots, by the means of Linux and by those of other systems (§6)."""

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from _rifl_ground import system

_ROOT = Path(__file__).parents[2]
_HOLDER = (
    "import sys; from _rifl_ground import system; system._LINUX = sys.argv[1] == 'yes'; "
    "held = system.hold_name(sys.argv[2]); print('held', flush=True); sys.stdin.readline(); "
    "held.close(); print('closed', flush=True); sys.stdin.readline()"
)


@pytest.fixture(params=(True, False) if system._LINUX else (False,), ids=str)
def linux(request, monkeypatch, tmp_path):
    """Whether names are Linux' abstract sockets; else they are locked files."""
    monkeypatch.setattr(system, "_LINUX", request.param)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return request.param


@pytest.fixture
def name():
    """A name that no other test holds."""
    return f"rifl-test-{os.urandom(8).hex()}"


@pytest.fixture
def holder(linux, name):
    """Another process that holds it."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, "yes" if linux else "no", name],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_name_is_held_while_its_process_lives(holder, name):
    """Suspended or not; once it is killed the name is free."""
    assert system.is_held(name)
    with pytest.raises(OSError, match=rf"Errno {errno.EADDRINUSE}\b"):
        system.hold_name(name)
    holder.send_signal(signal.SIGSTOP)
    assert system.is_held(name)
    holder.kill()
    holder.wait(60)
    assert not system.is_held(name)
    system.hold_name(name).close()


def test_a_name_that_is_given_back_is_free(holder, name, tmp_path):
    """And nothing of it is left."""
    holder.stdin.write("\n")
    assert holder.stdout.readline() == "closed\n"
    assert not system.is_held(name)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_gives_back_nothing_of_its_parents(linux, name):
    """By its ``close``, and by its end."""
    held = system.hold_name(name)
    child = os.fork()
    if not child:
        try:
            held.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert system.is_held(name)
    held.close()
    assert not system.is_held(name)


def test_the_lock_of_an_opening_is_its_own(tmp_path):
    """Closing another descriptor of the file keeps it, as SQLite's and notes' are closed."""
    path = tmp_path / "file"
    path.touch()
    mine, others = os.open(path, os.O_RDONLY), os.open(path, os.O_RDONLY)
    try:
        assert system.lock_opened(mine)
        assert not system.lock_opened(others)
        assert not system.lock_opened(others, shared=True)
        os.close(os.open(path, os.O_RDONLY))
        assert not system.lock_opened(others)
        system.unlock_opened(mine)
        assert system.lock_opened(others, shared=True)
        assert system.lock_opened(mine, shared=True)
    finally:
        os.close(mine)
        os.close(others)


@pytest.mark.parametrize("error", [None, errno.ENOTSUP, errno.EINVAL, errno.EIO])
def test_a_sync_is_a_full_one_where_there_is_such(error, monkeypatch, tmp_path):
    """A file system without it gets a plain one; a failure is told, and not tried again."""
    done = []

    def full(file, command):
        done.append(command)
        if error is not None:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(system, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda file: done.append("plain"))
    failing = (
        pytest.raises(OSError, match="Errno") if error == errno.EIO else contextlib.nullcontext()
    )
    with (tmp_path / "file").open("w") as file, failing:
        system.sync(file.fileno())
    assert done == ([51] if error in (None, errno.EIO) else [51, "plain"])


def test_a_machine_that_does_not_tell_its_boot(monkeypatch):
    """A process has a name of its own then, the same at each time."""
    mine = system.boot()
    assert mine == system.boot()

    def none(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(system, "_text", none)
    monkeypatch.setattr(system, "_boot_session", none)
    assert system.boot() == system._alone != mine


def test_two_names_of_one_file_are_told(tmp_path):
    """As two that differ in case are on macOS; files that are not there are different."""
    one, other = tmp_path / "one", tmp_path / "One"
    assert not system.same_file(one, other)
    one.touch()
    other.hardlink_to(one)
    assert system.same_file(one, other)
    assert system.same_file(tmp_path / "none", tmp_path / "none")


def test_writes_to_a_file_are_told_where_the_kernel_does(tmp_path):
    """Else the caller looks."""
    path = tmp_path / "file"
    path.touch()
    events = system.watch_writes(path)
    if not system._LINUX:
        assert events is None
        return
    try:
        assert select.select([events], [], [], 0)[0] == []
        path.write_text("written")
        assert select.select([events], [], [], 60)[0] == [events]
    finally:
        os.close(events)
