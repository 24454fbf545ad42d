"""``rifl doctor`` and ``sharedlog doctor``: what a start would refuse, or is weak (DESIGN §6)."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rifl
import sharedlog
from _rifl_ground import findings
from _rifl_ground.exits import EXIT_CODES, ExitCode
from _rifl_ground.findings import CODES, Checkup, Grade, tell, what_to_do
from _rifl_ground.servers import InvalidAddress
from _rifl_ground.sqlite import doctor as ground
from _rifl_ground.sqlite.long_wal import LONG_WAL_BYTES
from _rifl_ground.system import MAC
from curp._cli.command import main as group_main
from lease_server import open_authority
from rifl._cli.command import main
from rifl._stores import StoreLost, open_store
from rifl._stores.opening import examine
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import MethodPolicies
from sharedlog._cli.command import main as log_main
from sharedlog._core.errors import NoSuchLog
from sharedlog._engines.opening import examine as examine_log
from tests.compat.make_store import make
from tests.helpers.doctoring import beside, files_of, look, look_at_log
from tests.helpers.forked import Forked
from tests.helpers.waiting import DEADLINE_S
from tests.stores.redis.replica import IDEMPOTENT, Replica, call

ROOT = Path(__file__).parents[2]
Look = Callable[[str, Any], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "kept"
    made.mkdir()
    return made


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, as pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def store(folder: Path) -> str:
    url = f"sqlite:///{folder / 'rifl.db'}"
    make(url)
    return url


@pytest.fixture
def log(folder: Path) -> str:
    url = f"sqlite:///{folder / 'log.db'}"
    with sharedlog.create(url) as made:
        made.stream("s", 1)
        made.publish("s", b"one")
    return url


@pytest.fixture(params=["store", "log"])
def kept(request: pytest.FixtureRequest) -> tuple[str, Look]:
    """A store or a log in a file that is closed, and how to look at it."""
    return request.getfixturevalue(request.param), look if request.param == "store" else look_at_log


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


class Server(Replica):
    """As one server process has a store in a file."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url)
        self.authority: Any = open_authority(self.store.leases, term_s=60.0)
        self.store.bind(
            self.authority, MethodPolicies({}, "plain"), clock=time.monotonic, bounds=Bounds()
        )


# What is not there, or cannot be looked at


@pytest.mark.parametrize("command", [main, log_main])
@pytest.mark.parametrize("url", ["memory:", "nonsense", "postgresql+asyncpg://h/d", "grpc://h:1"])
def test_a_url_that_names_nothing_to_look_at_is_one_sentence(
    command: Any, url: str, capsys: Any
) -> None:
    """memory: is in another process; what is wrong usage is said as other commands do."""
    assert command(["doctor", url]) == ExitCode.USAGE
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("command", [("rifl",), ("sharedlog",), ("curp", "log")])
@pytest.mark.parametrize(
    ("given", "code"),
    [(["nonsense"], ExitCode.USAGE), (["-", "--store-file", "/no/file"], ExitCode.UNAVAILABLE)],
)
def test_for_programs_an_error_is_an_object_too(
    command: tuple[str, ...], given: list[str], code: ExitCode, capsys: Any
) -> None:
    """With --json a program reads one object, also if there was no look."""
    run = {"rifl": main, "sharedlog": log_main, "curp": group_main}[command[0]]
    assert run([*command[1:], "doctor", *given, "--json"]) == code
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found["worst"], len(found["findings"])) == ("error", 1)
    # The same line as without it.
    assert told.err == f"{command[0]}: {found['findings'][0]['found']}\n"


def test_what_is_not_there_yet_is_told_and_not_made(folder: Path, capsys: Any) -> None:
    """The first server makes a store; a log only ``create`` does."""
    url = f"sqlite:///{folder / 'none.db'}"
    found = look(url, capsys)
    assert (found.code, found.bad) == (ExitCode.DONE, [])
    assert "the first server makes it" in found.found[-1][2]
    found = look_at_log(url, capsys)
    assert found.code is ExitCode.NOT_FOUND
    assert "no log is there" in found.only("missing", "log")
    assert files_of(folder) == {}


@pytest.mark.parametrize("see", [look, look_at_log])
def test_a_folder_that_is_not_there_or_not_the_users(
    open_folder: Path, see: Look, capsys: Any
) -> None:
    """A start could make no file there."""
    found = see(f"sqlite:///{open_folder}/no/s.db", capsys)
    assert found.code is ExitCode.REFUSED
    assert "there is no folder" in found.only("error", "file")
    open_folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        found = see(f"sqlite:///{open_folder}/s.db", capsys)
    finally:
        if root:
            os.seteuid(0)
        open_folder.chmod(0o755)
    assert found.code is ExitCode.REFUSED
    assert "may not make files" in found.only("error", "rights")


# What is healthy, and what is not


def test_a_file_that_is_closed_is_healthy_and_not_touched(
    kept: tuple[str, Look], folder: Path, capsys: Any
) -> None:
    """Neither bytes nor times change, and no file is made beside it (DESIGN §6)."""
    url, see = kept
    before = files_of(folder)
    for _ in range(2):
        found = see(url, capsys)
        assert found.bad == []
    assert files_of(folder) == before


def test_a_running_server_goes_on_and_its_files_are_not_touched(folder: Path, capsys: Any) -> None:
    """It is named, answers before, during and after, and is not superseded (DESIGN §6)."""
    url = f"sqlite:///{folder / 'rifl.db'}"
    one = Server(url)
    client, seqs = one.client(), iter(range(1, 1_000_000))

    def act() -> None:
        seq = next(seqs)
        one.finish(one.begin(call(client, seq, first=seq), IDEMPOTENT))

    with beside(act):
        found = look(url, capsys)
    assert found.bad == []
    assert f"pid {os.getpid()} has it open" in found.found[-1][2]
    before = files_of(folder, same_process=True)
    assert f"{path_of(url).name}-wal" in before
    assert look(url, capsys).bad == []
    assert files_of(folder, same_process=True) == before
    act()
    one.close()


def test_another_process_has_the_files_open(
    store: str, log: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """No byte of the -shm changes, either; the lock that says so is asked for, not taken."""
    with Owner(store, log) as pid:
        before = files_of(folder)
        assert {
            f"{each}{suffix}" for each in ("rifl.db", "log.db") for suffix in ("-wal", "-shm")
        } < {*before}
        if not MAC:
            monkeypatch.setattr(fcntl, "lockf", _no_lock)
        for _ in range(2):
            found = look(store, capsys)
            assert found.bad == []
            assert f"pid {pid} has it open" in found.found[-1][2]
            assert look_at_log(log, capsys).bad == []
        assert files_of(folder) == before
        monkeypatch.undo()
    assert look(store, capsys).bad == []


def _no_lock(*arguments: Any) -> None:
    raise AssertionError(f"a lock was taken: {arguments}")


class Owner:
    """A process that has a store and a log open."""

    def __init__(self, *urls: str) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", _OWNER, *urls],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> int:
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == b"open\n"
        return self._child.pid

    def __exit__(self, *_: object) -> None:
        self._child.communicate(timeout=DEADLINE_S)


_OWNER = """
import sys
import rifl, sharedlog
with rifl.Deduplicator(sys.argv[1]), sharedlog.open(sys.argv[2]):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_log_that_programs_use_goes_on(log: str, folder: Path, capsys: Any) -> None:
    """Appends are answered before, during and after; no file changes (DESIGN-LOG §12)."""
    with sharedlog.open(log) as opened:
        with beside(lambda: opened.publish("s", b"more")):
            assert look_at_log(log, capsys).bad == []
        before = files_of(folder, same_process=True)
        assert look_at_log(log, capsys).bad == []
        assert files_of(folder, same_process=True) == before
        opened.publish("s", b"last")


@pytest.mark.parametrize("without", ["", "-shm"])
def test_what_a_crash_left_is_healthy_and_not_touched(
    folder: Path, tmp_path: Path, without: str, capsys: Any
) -> None:
    """Its -wal is read without the recovery that the next start makes (DESIGN §6)."""
    url = f"sqlite:///{folder / 'rifl.db'}"
    one = Server(url)
    one.finish(one.begin(call(one.client(), 1), IDEMPOTENT))
    left = tmp_path / "left"
    shutil.copytree(folder, left)
    one.close()
    if without:
        (left / f"rifl.db{without}").unlink()
    before = files_of(left)
    found = look(f"sqlite:///{left / 'rifl.db'}", capsys)
    assert (found.code, found.bad) == (ExitCode.DONE, [])
    assert bool(found.found) is bool(without)
    assert files_of(left) == before
    with closing(open_store(f"sqlite:///{left / 'rifl.db'}")):
        pass


def _older_copy(path: Path) -> None:
    shutil.copy(path, f"{path}.copy")
    url = f"sqlite:///{path}"
    try:
        with sharedlog.open(url) as opened:
            opened.publish("s", b"two")
    except NoSuchLog:
        one = Server(url)
        one.finish(one.begin(call(one.client(), 1), IDEMPOTENT))
        one.close()
    os.replace(f"{path}.copy", path)


def _garbage(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)


def _cut_off(path: Path) -> None:
    os.truncate(path, 100)


def _newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, name in (("rifl_meta", "schema_version"), ("sharedlog_meta", "format")):
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name=?", (table,)).fetchone():
                connection.execute(f"UPDATE {table} SET value=99 WHERE name=?", (name,))  # noqa: S608


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (_older_copy, "older copy"),
        (_garbage, "damaged"),
        (_cut_off, "cut off"),
        (_newer, "newer|knows"),
        (_emptied, "missing or empty"),
    ],
)
def test_what_a_start_refuses_is_an_error(
    kept: tuple[str, Look], break_it: Any, text: str, folder: Path, capsys: Any
) -> None:
    """By the start's own check, whose error it is, and nothing is touched (DESIGN §6)."""
    url, see = kept
    break_it(path_of(url))
    before = files_of(folder)
    found = see(url, capsys)
    assert found.code is ExitCode.REFUSED
    (bad,) = found.bad
    assert bad[0] == "error"
    assert any(each in bad[2] for each in text.split("|"))
    assert files_of(folder) == before
    opening: Any = Server if see is look else sharedlog.open
    with pytest.raises((rifl.StoreError, sharedlog.LogError)) as refused:
        opening(url)
    assert " ".join(str(refused.value).split())[:60] in bad[2]


def test_two_names_of_a_store_are_an_error(store: str, capsys: Any) -> None:
    """Each would have a -wal of its own."""
    os.link(path_of(store), f"{path_of(store)}.2")
    assert "hard links" in look(store, capsys).only("error", "file")


def test_what_is_weak_about_a_file(
    kept: tuple[str, Look], open_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Other users' rights, little room on the disk, and a -wal that a reader keeps long."""
    url, see = kept
    path = open_folder / path_of(url).name
    for each in path_of(url).parent.iterdir():
        shutil.copy(each, open_folder)
    path.chmod(0o644)
    found = see(f"sqlite:///{path}", capsys)
    assert found.code is ExitCode.DEGRADED
    assert "all users" in found.only("warning", "rights")
    path.chmod(0o600)
    assert see(f"sqlite:///{path}", capsys).bad == []
    with open(f"{path}-wal", "wb") as wal:
        wal.truncate(LONG_WAL_BYTES + 1)
    assert "64 MiB" in see(f"sqlite:///{path}", capsys).only("warning", "wal")
    os.unlink(f"{path}-wal")
    monkeypatch.setattr(ground, "LEAST_FREE_BYTES", 1 << 60)
    assert "are free" in see(f"sqlite:///{path}", capsys).only("warning", "disk")


def test_a_file_system_in_memory_or_over_a_network_is_weak(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The kernel tells which one it is."""
    assert ground.file_system(Path("/proc")) == ("" if MAC else "proc")
    for kind, text in (("tmpfs", "in memory"), ("nfs4", "network"), ("ext4", "")):
        monkeypatch.setattr(ground, "file_system", lambda _, kind=kind: kind)
        found = look(store, capsys)
        assert [text in each[2] for each in found.found] == [True] * bool(text)
        assert found.code is (ExitCode.DEGRADED if text else ExitCode.DONE)


# How it is told


def test_findings_are_told_worst_first_with_what_to_do(capsys: Any) -> None:
    """The exit code is the worst one's, of the one table."""
    checkup = Checkup("redis h:1", InvalidAddress)
    assert tell(checkup, as_json=False) is ExitCode.DONE
    assert capsys.readouterr().out == "redis h:1: nothing would be refused, and nothing is weak\n"
    checkup.note("store", "none")
    checkup.warning("disk", "little\nroom", "Make room.")
    assert tell(checkup, as_json=False) is ExitCode.DEGRADED
    checkup.error("file", "gone \x1b[31m", "Bring it back.")
    assert tell(checkup, as_json=False) is ExitCode.REFUSED
    assert capsys.readouterr().out.splitlines()[-5:] == [
        "error: file: gone \\x1b[31m",
        "    do: Bring it back.",
        "warning: disk: little room",
        "    do: Make room.",
        "note: store: none",
    ]
    told = {ExitCode.USAGE, ExitCode.MISSING_EXTRA, ExitCode.INTERRUPTED, ExitCode.TERMINATED}
    assert set(EXIT_CODES["doctor"]) == told | set(CODES.values())
    assert set(CODES) == set(Grade)
    assert what_to_do(StoreLost).startswith("Bring the rest back")
    assert what_to_do(NoSuchLog) == "Correct the URL, or create the log."


def test_clocks_that_differ_are_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """By more than the question took."""
    checkup = Checkup("x", InvalidAddress)
    times = iter([100.0, 190.0, 100.0, 100.0])
    monkeypatch.setattr(findings, "time", SimpleNamespace(time=lambda: next(times)))
    checkup.clock(lambda: 194.0)
    assert checkup.findings == []
    checkup.clock(lambda: 92.0)
    assert "8 s apart" in checkup.findings[0].found


# Servers that do not answer, and signals


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a listener that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening.getsockname()[1]


_STORES = (
    "redis://127.0.0.1:{}?timeout_s=0.2",
    "redis+sentinel://127.0.0.1:{}/main?timeout_s=0.2",
    "redis+cluster://127.0.0.1:{}?timeout_s=0.2",
    "postgresql://u:secret@127.0.0.1:{}/d?timeout_s=0.2&sslmode=disable",
    "mysql://u:secret@127.0.0.1:{}/d?timeout_s=0.2",
)
_LOGS = (*_STORES[:4], "etcd://127.0.0.1:{}?timeout_s=0.5&try_s=0.2")


def test_a_server_that_does_not_answer_ends_the_look_in_time(silent: int) -> None:
    """Each driver gives up after the URL's timeout_s, or at once; all beside each other here."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        closed = listening.getsockname()[1]
    began = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        looks = [
            pool.submit(by, url.format(port))
            for by, urls in ((examine, _STORES), (examine_log, _LOGS))
            for url in urls
            for port in (silent, closed)
        ]
        found = [each.result(DEADLINE_S) for each in looks]
    assert [each.worst for each in found] == [Grade.UNREACHABLE] * len(found)
    # PostgreSQL's connect_timeout is 2 s at least; a loaded machine is slow.
    assert time.monotonic() - began < DEADLINE_S
    assert not any("secret" in str(each.findings) for each in found)


def test_a_closed_port_is_told_by_its_exit_code(capsys: Any) -> None:
    """As no answer, which is neither a refusal nor a weakness."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    for see in (look, look_at_log):
        found = see(_STORES[0].format(port), capsys)
        assert found.code is ExitCode.UNAVAILABLE
        assert found.only("unreachable", "connection")


@pytest.mark.parametrize("module", ["rifl", "sharedlog"])
def test_ctrl_c_ends_a_look_that_waits(module: str, tmp_path: Path) -> None:
    """With the shell's code and nothing said (DESIGN §9)."""
    with socket.create_server(("127.0.0.1", 0)) as listening, (tmp_path / "e").open("wb") as errors:
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}?timeout_s=60"
        child = Forked([module, "doctor", url], stderr=errors)
        listening.settimeout(DEADLINE_S)
        with listening.accept()[0]:
            child.send_signal(signal.SIGINT)
            assert child.wait(DEADLINE_S) == ExitCode.INTERRUPTED
        assert child.stdout is not None
        assert child.stdout.read() == b""
    assert (tmp_path / "e").read_bytes() == b""


def test_a_pipe_that_is_closed_changes_no_exit_code(store: str, tmp_path: Path) -> None:
    """As in ``rifl doctor URL | true`` under pipefail."""
    os.link(path_of(store), f"{path_of(store)}.2")
    with (tmp_path / "e").open("wb") as errors:
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as closed:
            child = subprocess.Popen(
                [sys.executable, "-m", "rifl", "doctor", store],
                cwd=ROOT,
                stdout=closed,
                stderr=errors,
            )
        assert child.wait(DEADLINE_S) == ExitCode.REFUSED
    assert (tmp_path / "e").read_bytes() == b""
