"""The names of a log's open files, watched for a replacement (DESIGN-LOG §12, L2)."""

import os
import time

import pytest

from _rifl_ground.sqlite import guard
from _rifl_ground.sqlite.guard import FileNames


@pytest.fixture
def path(tmp_path):
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"log.db{suffix}").touch()
    return tmp_path / "log.db"


def later(path):
    """Let the clock by which the kernel counts the times of files go on."""
    probe, before = path.with_name("probe"), path.parent.stat().st_ctime_ns
    while path.parent.stat().st_ctime_ns == before:
        probe.touch()
        probe.unlink()


def names(path, now_ns):
    found = FileNames(path, now_ns)
    found.remember()
    return found


def long_since():
    """A clock by which nothing changed lately."""
    return time.time_ns() + 3_600_000_000_000


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("now_ns", [time.time_ns, long_since])
def test_a_name_that_is_gone_or_of_another_file_is_noticed(path, suffix, now_ns):
    """Also where the directory had been the same for long, and has its old times again."""
    found, other = names(path, now_ns), path.with_name("other")
    assert found.changed() == ""
    was = path.parent.stat()
    later(path)
    other.touch()
    os.replace(other, f"{path}{suffix}")
    os.utime(path.parent, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert "another file" in found.changed()
    os.unlink(f"{path}{suffix}")
    assert "is gone" in found.changed()


def test_names_are_looked_at_where_their_directory_changed(path, monkeypatch):
    """One look at the directory before and behind a commit, where nothing happened to it."""
    looks = []

    class Counting:
        fsencode, fsdecode = os.fsencode, os.fsdecode

        @staticmethod
        def stat(name):
            looks.append(name)
            return os.stat(name)

    monkeypatch.setattr(guard, "os", Counting)
    found = names(path, long_since)
    looks.clear()
    for _ in range(3):
        assert found.changed() == ""
    assert len(looks) == 1 + 3 + 1 + 1
    # What changed within a step of the clock is not relied on.
    fresh = names(path, lambda: path.parent.stat().st_ctime_ns + 1000)
    looks.clear()
    for _ in range(2):
        assert fresh.changed() == ""
    assert len(looks) == 2 * (1 + 3)


def test_a_link_is_followed_each_time(tmp_path, path):
    """What it names is elsewhere: its own directory does not tell."""
    link = tmp_path / "links"
    link.mkdir()
    for suffix in ("", "-wal", "-shm"):
        (link / f"log.db{suffix}").symlink_to(f"{path}{suffix}")
    found = names(link / "log.db", long_since)
    assert found.changed() == ""
    path.unlink()
    assert "is gone" in found.changed()
