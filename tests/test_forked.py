"""Processes that the tests fork are processes like those that ``python -m`` starts."""

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helpers.forked import Forked

MODULE = "tests.helpers.said"


@pytest.fixture
def forked(tmp_path):
    """Start processes, and leave none."""
    made = []

    def start(*arguments, **more):
        with (tmp_path / f"{len(made)}.err").open("wb") as errors:
            env = {**os.environ, "PYTHONUNBUFFERED": "1", **more}
            made.append(Forked([MODULE, *arguments], env=env, stderr=errors, with_input=True))
        return made[-1]

    yield start
    for each in made:
        each.kill()
        each.wait(30)
        each.stdin.close()
        each.stdout.close()


def watched(process):
    while (code := process.poll()) is None:
        pass
    return code


def told(process):
    return json.loads(process.stdout.readline())


def test_each_is_a_process_of_its_own_with_what_it_was_given(forked):
    """Its pid, arguments and environment, and the name that ``python -m`` gives."""
    first, second = forked("a", "b", NAME="1"), forked(NAME="2")
    of_first, of_second = told(first), told(second)
    assert of_first["pid"] == first.pid != second.pid == of_second["pid"]
    assert of_first["arguments"] == ["a", "b"]
    assert (of_first["NAME"], of_second["NAME"]) == ("1", "2")
    assert of_first["main"] == "__main__"
    assert of_first["threads"] == 1


def test_its_end_is_told_by_its_code(forked, tmp_path):
    """By itself, by an error, by a signal (its number, negative)."""
    ends, fails, killed, asked = forked(), forked("fail"), forked(), forked()
    ends.stdin.write(b"7\n")
    ends.stdin.flush()
    assert ends.wait(30) == 7
    fails.stdin.close()
    assert fails.wait(30) == 1
    assert "ZeroDivisionError" in (tmp_path / "1.err").read_text()
    assert killed.poll() is None
    killed.kill()
    assert (killed.wait(30), killed.poll()) == (-signal.SIGKILL, -signal.SIGKILL)
    told(asked)
    asked.terminate()
    assert asked.wait(30) == -signal.SIGTERM


def test_several_threads_learn_how_it_ended(forked):
    """One that watches it, and others that wait for it, as it is killed (DESIGN §9)."""
    for _ in range(30):
        process = forked()
        told(process)
        with ThreadPoolExecutor(4) as pool:
            ends = [pool.submit(process.wait, 30) for _ in range(3)]
            watching = pool.submit(watched, process)
            process.kill()
            assert {each.result(30) for each in (*ends, watching)} == {-signal.SIGKILL}


def test_no_other_holds_its_pipes(forked):
    """The end of its input is its end; that of its output is seen while others run."""
    first = forked()
    second = forked()
    told(first), told(second)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0)
    first.stdin.close()
    assert first.wait(30) == 0
    assert first.stdout.read() == b""
    assert second.poll() is None
