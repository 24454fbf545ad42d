"""``rifl unknown``, as the docs show it (docs/how-to/operations.md)."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from rifl._cli import ExitCode, main
from rifl.core import RpcId
from tests.echo import METHOD, served
from tests.helpers.pages import page

ROOT = Path(__file__).parents[2]
KEYS = ("order-17", "order-18")
_KILLED = """
import os, signal, sys, threading
import grpc
import rifl
from tests.echo import METHOD, served

both = threading.Barrier(len(sys.argv) - 2)

def dies(request, context):
    both.wait(20)
    os.kill(os.getpid(), signal.SIGKILL)

with rifl.Deduplicator(sys.argv[1], sessions_from="anyone") as dedup, served(dedup, dies) as target:
    with rifl.connect(target, session="nightly import") as channel:
        call = channel.unary_unary(METHOD)
        for key in sys.argv[2:]:
            threading.Thread(
                target=lambda key=key: call(b"x", timeout=20, metadata=[rifl.key(key)]), daemon=True
            ).start()
        threading.Event().wait(15)
"""


def _section() -> str:
    text = page("operations.md").read_text()
    return text.split("## Calls whose outcome is unknown", 1)[1].split("\n## ", 1)[0]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store whose server was killed while two calls ran, and which was opened since."""
    return _killed(tmp_path, *KEYS)


def _killed(tmp_path: Path, *keys: str) -> str:
    url = f"sqlite:///{tmp_path / 'service.db'}"
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, url, *keys],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    rifl.Deduplicator(url).close()
    return url


def _listed(url: str, capsys: Any) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert main(["unknown", "list", url, "--json"]) == ExitCode.DONE
    calls = json.loads(capsys.readouterr().out)["calls"]
    return {call["rpc_id"].partition("/")[2]: call for call in calls}


def test_the_worked_example_works(url: str, capsys: Any) -> None:
    """The commands of the docs do what stands there, and callers see it (DESIGN §4)."""
    client = next(iter(_listed(url, capsys).values()))["rpc_id"].partition("/")[0]
    assert main(["unknown", "list", url]) == ExitCode.DONE
    listed = capsys.readouterr().out
    assert all(f"{client}/{key} " in listed for key in KEYS)
    for line in re.findall(r"^\$ (rifl unknown .*)$", _section(), re.MULTILINE):
        command = line.replace("sqlite:///service.db", url).replace("1025/", f"{client}/")
        assert main(shlex.split(command)[1:]) == ExitCode.DONE, command
    shown = capsys.readouterr().out
    assert "not in the ledger" in shown
    ran: list[bytes] = []

    def handler(request: bytes, context: Any) -> bytes:
        ran.append(request)
        return b"done"

    with (
        rifl.Deduplicator(url, sessions_from="anyone") as dedup,
        served(dedup, handler) as target,
        rifl.connect(target, session="nightly import") as channel,
    ):
        call = channel.unary_unary(METHOD)
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as lost:
                call(b"x", timeout=10, metadata=[rifl.key(KEYS[0])])
            assert isinstance(lost.value, rifl.core.AnswerLost)
            # There is no answer that could be replayed: to nobody.
            assert lost.value.outcome is rifl.Outcome.EXECUTED
        equal = [rifl.BatchItem(b"x", key=KEYS[0])] * 2
        assert {each.outcome for each in channel.batch(METHOD, equal, timeout=10)} == {
            rifl.Outcome.EXECUTED
        }
        assert lost.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert ran == []
        assert call(b"x", timeout=10, metadata=[rifl.key(KEYS[1])]) == b"done"
    assert ran == [b"x"]


def test_many_at_once_from_a_file(url: str, tmp_path: Path, capsys: Any) -> None:
    """--from takes one identity on each line; the answer comes from a file, too."""
    names = [call["rpc_id"] for call in _listed(url, capsys).values()]
    (tmp_path / "ids").write_text("\n".join(names) + "\n")
    (tmp_path / "answer").write_bytes(b"the answer")
    who = ["--who", "ann", "--why", "seen"]
    command = ["unknown", "settle", url, "--from", str(tmp_path / "ids"), "--executed", *who]
    assert main([*command, "--response", str(tmp_path / "answer")]) == ExitCode.DONE
    with (
        rifl.Deduplicator(url, sessions_from="anyone") as dedup,
        served(dedup) as target,
        rifl.connect(target, session="nightly import") as channel,
    ):
        for key in KEYS:
            assert (
                channel.unary_unary(METHOD)(b"x", timeout=10, metadata=[rifl.key(key)])
                == b"the answer"
            )
        capsys.readouterr()
        # What has an answer is not touched, beside a server or without one.
        assert main([*command, "--json"]) == ExitCode.NOT_FOUND
    assert set(json.loads(capsys.readouterr().out)["settled"].values()) == {"answered"}


def test_slips_change_nothing(url: str, capsys: Any) -> None:
    """Without --yes, with an unknown name, beside the owner: refused, with an exit code."""
    one, other = [call["rpc_id"] for call in _listed(url, capsys).values()]
    who = ["--who", "ann", "--why", "seen"]
    settle = ["unknown", "settle", url]
    assert main([*settle, one, "--not-executed", *who]) == ExitCode.USAGE
    assert "RUNS IT" in capsys.readouterr().err
    assert main([*settle, one, "99/1", "--executed", *who]) == ExitCode.NOT_FOUND
    assert main([*settle, "--executed", *who]) == ExitCode.USAGE
    assert main([*settle, "12", "--executed", *who]) == ExitCode.USAGE
    with rifl.Deduplicator(url):
        assert main([*settle, one, other, "--not-executed", "--yes", *who]) == ExitCode.OWNED
        assert "2 refused" in capsys.readouterr().err
    assert {call["state"] for call in _listed(url, capsys).values()} == {"unknown"}
    with pytest.raises(SystemExit):
        main([*settle, one, "--executed", "--who", "ann"])
    assert main(["unknown", "show", url, "99/1"]) == ExitCode.NOT_FOUND
    capsys.readouterr()
    assert main(["unknown", "show", url, one, "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["state"] == "unknown"


def test_what_is_shown_names_no_other_call(
    tmp_path: Path, capsys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Digits are never taken for another key's bytes, also of a call that left nothing."""
    url = _killed(tmp_path, "31", "0xyz")
    shown = {key: f"0x{key.encode().hex()}" for key in ("1", "31", "0xyz")}
    listed = _listed(url, capsys)
    assert set(listed) == {shown["31"], shown["0xyz"]}
    client = listed[shown["31"]]["rpc_id"].partition("/")[0]
    assert main(["unknown", "list", url]) == ExitCode.DONE
    table = capsys.readouterr().out
    calls = tmp_path / "calls"
    settle = ["unknown", "settle", url, "--who", "ann", "--why", "ledger", "--executed", "--from"]
    for key in ("31", "0xyz"):
        assert f"{client}/{shown[key]} " in table
        assert f"{client}/{shown[key]} " in caplog.text
    # As the error of the call "1" names it, whose bytes are the hexadecimal digits 31; and a
    # line that is one key.
    for line in (str(RpcId(int(client), None, b"1")), f"{client}/two {client}/{shown['31']}"):
        calls.write_text(f"\n {line}\n")
        assert main([*settle, str(calls)]) == ExitCode.NOT_FOUND
    assert [call["state"] for call in _listed(url, capsys).values()] == ["unknown"] * 2


def test_a_store_without_such_calls_says_so(tmp_path: Path, capsys: Any) -> None:
    """An empty list is a sentence, not a table."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    rifl.Deduplicator(url).close()
    assert main(["unknown", "list", url]) == ExitCode.DONE
    assert capsys.readouterr().out == "no call's outcome is unknown\n"
