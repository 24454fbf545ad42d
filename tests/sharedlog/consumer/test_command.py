"""``sharedlog consumers`` says who has what (DESIGN-LOG §14)."""

import importlib
import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

import sharedlog
from sharedlog._cli import ExitCode, consuming, main
from sharedlog.testing import drain, driven
from tests.helpers.processes import Process, started
from tests.helpers.waiting import until
from tests.sharedlog.consumer.world import World

MODULE = "tests.sharedlog.consumer.runnable"


def told(capsys, *arguments):
    assert main(["consumers", *arguments, "--json"]) == ExitCode.DONE
    return json.loads(capsys.readouterr().out)


def test_the_command_shows_shards_and_resumes_them(tmp_path, capsys):
    """Owner, fence, position, lag; what is stopped and why; and it goes on when told to (T5)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    world = World(tmp_path, orders=3, attempts=1, url=url)
    assert told(capsys, url) == []
    with driven(world.consumer()) as process:
        process.drain()
        rows = told(capsys, url)
        assert [(each["substream"], each["state"], each["fence"]) for each in rows] == [
            ("orders/0", "runs", 1),
            ("orders/1", "runs", 1),
        ]
        assert all(" on " in each["process"] for each in rows)
    world.refused = {"c1"}
    world.order(3)
    drain(world.consumer())
    rows = told(capsys, url)
    (stopped,) = [each for each in rows if each["state"] == "stopped"]
    assert "c1 is not billed" in stopped["why"]
    assert stopped["process"] is None
    assert stopped["entries_behind"] > 0
    assert main(["consumers", url]) == ExitCode.DONE
    assert "c1 is not billed" in capsys.readouterr().out
    assert told(capsys, url, "--resume", "billing") == {"resumed": [stopped["substream"]]}
    assert main(["consumers", url, "--resume", "nobody"]) == ExitCode.NOT_FOUND
    world.refused = set()
    drain(world.consumer())
    world.check()
    world.log.close()


@pytest.fixture
def runnable(tmp_path, monkeypatch):
    """The environment of ``runnable``, and its log and file."""
    url, file = f"sqlite:///{tmp_path / 'log.db'}", tmp_path / "done.db"
    monkeypatch.setenv("RUNNABLE_LOG", url)
    monkeypatch.setenv("RUNNABLE_STORE", f"sqlite:///{file}")
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE done (what TEXT, pid INTEGER)")
    with sharedlog.create(url) as log:
        log.stream("orders", substreams=4)
        yield log, file


def done(file):
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT what, pid FROM done").fetchall()


def test_the_command_runs_a_consumer_of_a_module(runnable, capsys):
    """Until it is closed, by a signal or by itself; what is no consumer is told in a line."""
    log, file = runnable
    log.publish("orders", "the last")
    assert main(["run", f"{MODULE}:consumer"]) == ExitCode.DONE
    sys.modules[MODULE].log.close()
    assert [what for what, _ in done(file)] == ["the last"]
    for wrong in ("nowhere:consumer", f"{MODULE}:nothing", f"{MODULE}:something_else", MODULE):
        assert main(["run", wrong]) == ExitCode.USAGE
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["run", f"{MODULE}:consumer", "--processes", "0"]) == ExitCode.USAGE


@pytest.mark.long
def test_processes_that_die_are_started_again_and_end_together(runnable, tmp_path):
    """``--processes 2``: one is killed; SIGTERM ends all, and a parent that is killed, too."""
    log, file = runnable
    command = ["run", f"{MODULE}:consumer", "--processes", "2"]
    for ends in (Process.terminate, Process.kill):
        with started("sharedlog", *command, log=tmp_path / "errors") as parent:

            def working(log=log):
                log.publish("orders", "more")
                return len({pid for _, pid in done(file) if alive(pid)}) == 2

            until(working, "two processes work")
            pids = {pid for _, pid in done(file) if alive(pid)}
            os.kill(min(pids), signal.SIGKILL)
            until(lambda pids=pids: not alive(min(pids)), "it is dead")
            until(working, "two processes work again")
            ends(parent)
            until(lambda: not [pid for _, pid in done(file) if alive(pid)], "all have ended")
    module = importlib.import_module(MODULE)
    module.consumer.once()
    module.log.close()
    published = sum(len(log.read("orders", each, limit=10_000)) for each in range(4))
    assert len(done(file)) == published


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_that_exits_is_started_again_and_what_lasts_ends_them(
    tmp_path, monkeypatch, capfd
):
    """Exit codes of handlers are not the command's own: those come with a word on the pipe."""
    monkeypatch.setattr(consuming, "_SHORTEST_S", 0.01)
    starts = tmp_path / "starts"
    program = f"""
import os, sys
with open({str(starts)!r}, "a") as file:
    file.write("x")
count = os.path.getsize({str(starts)!r})
if count == 1:
    os._exit(9)
if count == 2:
    sys.exit(3)
if count == 3:
    sys.exit(0)
os.write(int(sys.argv[1]), b"!")
sys.exit(4)
"""
    assert consuming.supervise([sys.executable, "-c", program], 1) == ExitCode.NOT_FOUND
    assert starts.read_text() == "xxxx"
    told = capfd.readouterr().err
    assert "exited with 9: another one starts in 0.01 s" in told
    assert "exited with 3: another one starts in 0.02 s" in told
    assert "exited with 0: another one starts in 0.04 s" in told


def test_processes_that_end_together_start_together(tmp_path, monkeypatch, capfd):
    """Each has its own pause: the last one is not kept waiting for those before it."""
    monkeypatch.setattr(consuming, "_SHORTEST_S", 0.05)
    # Every process takes a number, and waits until the other three of its four are there.
    program = f"""
import itertools, os, sys, time
for number in itertools.count():
    try:
        os.mkdir(os.path.join({str(tmp_path)!r}, str(number)))
        break
    except FileExistsError:
        pass
began = time.monotonic()
while len(os.listdir({str(tmp_path)!r})) < number // 4 * 4 + 4:
    time.sleep(0.01)
    if time.monotonic() - began > 60:
        os._exit(9)
if number < 4:
    os._exit(1)
os.write(int(sys.argv[1]), b".")
"""
    assert consuming.supervise([sys.executable, "-c", program], 4) == ExitCode.DONE
    assert len(list(tmp_path.iterdir())) == 8
    assert capfd.readouterr().err.count("exited with 1: another one starts in 0.05 s") == 4


def test_a_handler_that_exits_with_0_does_not_end_the_command_well(runnable, capsys):
    """A supervisor starts again what did not end well; a consumer that is closed did."""
    log, _ = runnable
    log.publish("orders", "exit")
    assert main(["run", f"{MODULE}:consumer"]) == ExitCode.UNAVAILABLE
    sys.modules[MODULE].log.close()
    assert "a handler exits: 0" in capsys.readouterr().err


def test_a_process_whose_store_is_away_does_not_end_the_others(runnable, monkeypatch):
    """It says nothing on the pipe: the database may be there when the next one begins."""
    monkeypatch.setenv("RUNNABLE_STORE", "postgresql://127.0.0.1:1/nowhere")
    reading, end = os.pipe()
    try:
        command = ["run", f"{MODULE}:consumer", "--child", str(end)]
        assert main(command) == ExitCode.UNAVAILABLE
        sys.modules[MODULE].log.close()
    finally:
        os.close(end)
    with os.fdopen(reading, "rb") as said:
        assert said.read() == b""


def test_processes_of_a_module_that_is_none_end_at_once(capfd):
    """What is wrong at the very start lasts: the command ends with its code."""
    assert main(["run", "nowhere:consumer", "--processes", "2"]) == ExitCode.USAGE
    assert "another one starts" not in capfd.readouterr().err
