"""The commands ``rifl doctor`` and ``sharedlog doctor``, and what goes on beside them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from _rifl_ground.exits import ExitCode
from _rifl_ground.sqlite import doctor
from _rifl_ground.system import file_system
from rifl._cli.command import main as rifl
from sharedlog._cli.command import main as sharedlog
from tests.helpers.waiting import DEADLINE_S
from tests.stores.redis.replica import IDEMPOTENT, Replica, call

__all__ = ["Looked", "beside", "files_of", "goes_on", "look", "look_at_log", "looked"]


class Looked(NamedTuple):
    """A command's exit code, and its findings as (grade, about, found)."""

    code: int
    found: list[tuple[str, str, str]]

    @property
    def bad(self) -> list[tuple[str, str, str]]:
        """All but notes."""
        return [each for each in self.found if each[0] != "note"]

    def only(self, grade: str, about: str) -> str:
        """Return the text of the one bad finding, which is this."""
        assert [each[:2] for each in self.bad] == [(grade, about)], self
        return self.bad[0][2]


def look(url: str, capsys: Any) -> Looked:
    """Look at a store."""
    return looked(rifl, url, capsys)


def look_at_log(url: str, capsys: Any) -> Looked:
    """Look at a log."""
    return looked(sharedlog, url, capsys)


def looked(command: Callable[[list[str]], int], url: str, capsys: Any) -> Looked:
    """Run a command's ``doctor`` for programs.

    Tests keep their files in memory if there is room; as if they were on a disk, unless the test
    says itself on what they are.
    """
    capsys.readouterr()
    kind = (lambda _: "ext4") if doctor.file_system is file_system else doctor.file_system
    with mock.patch.object(doctor, "file_system", kind):
        code = command(["doctor", url, "--json"])
    told = json.loads(capsys.readouterr().out)
    found = [(each["grade"], each["about"], each["found"]) for each in told["findings"]]
    assert all(each["do"] for each in told["findings"] if each["grade"] != "note")
    assert "secret" not in told["place"]
    return Looked(ExitCode(code), found)


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[None]:
    """Have something be done before, again and again during, and after what is within."""
    act()
    ended, during = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def go_on() -> None:
        try:
            while not ended.is_set():
                act()
                during.set()
        except BaseException as error:  # noqa: BLE001 - raised by the test's thread
            errors.append(error)
            during.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
        assert during.wait(DEADLINE_S)
    finally:
        ended.set()
        thread.join(DEADLINE_S)
    assert errors == []
    act()


def files_of(folder: Path, *, same_process: bool = False) -> dict[str, tuple[bytes, int, int]]:
    """Return what is in a folder: bytes, time of change, and mode of each file.

    ``same_process``: but for those of SQLite's ``-shm``, which one process has once for all.
    """
    return {
        file.name: (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_mode)
        for file in sorted(folder.iterdir())
        if not (same_process and file.name.endswith("-shm"))
    }


def goes_on(url: str, capsys: Any, kept: Callable[[], object]) -> None:
    """A replica's calls are answered before, during and after a look, which changes nothing."""
    one = Replica(url)
    client, seqs = one.client(), iter(range(1, 1_000_000))

    def act() -> None:
        seq = next(seqs)
        one.finish(one.begin(call(client, seq, first=seq), IDEMPOTENT))

    with beside(act):
        found = look(url, capsys)
    assert (found.code, found.found) == (ExitCode.DONE, [])
    one.close()
    before = kept()
    assert look(url, capsys).found == []
    assert kept() == before
