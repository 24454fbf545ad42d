"""The ``rifl`` command as people and scripts run it."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pyarrow.parquet
import pytest

import rifl
from curp._cli.command import main as curp_main
from rifl._cli import ExitCode, main
from rifl._cli.identity import candidates, shown
from rifl._stores.inspection import CallRow
from rifl._stores.opening import open_inspection
from rifl.core._shared.identity import RpcId
from sharedlog._cli.command import main as sharedlog_main
from tests.compat.make_store import make
from tests.echo import METHOD, served

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path / 'rifl.db'}"
    make(made)
    return made


def test_all_commands_tell_the_installed_release(capsys: Any) -> None:
    """By the distribution's name, which is not the import's."""
    expected = importlib.metadata.version("rifl-grpc")
    for name, command in (("rifl", main), ("curp", curp_main), ("sharedlog", sharedlog_main)):
        with pytest.raises(SystemExit) as ended:
            command(["--version"])
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"{name} {expected}\n"


def test_inspect_shows_what_the_store_holds(url: str, capsys: Any) -> None:
    """Clients, sessions and calls in progress are listed, with sizes and ages."""
    assert main(["inspect", url]) == ExitCode.DONE
    text = capsys.readouterr().out
    for expected in ("owned by", "no process", "orders (open)", "1/4", "/bank.Bank/Deposit"):
        assert expected in text
    # It may have taken a while to get here.
    assert re.search(r"intent +\d+s$", text, re.MULTILINE)


def test_inspect_for_programs(url: str, capsys: Any) -> None:
    """--json prints one object with the same."""
    assert main(["inspect", url, "--json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["records"] == 3
    assert [client["client_id"] for client in found["clients"]] == [1, 1025]
    assert [call["rpc_id"] for call in found["intents"]] == ["1/4"]
    assert found["intents"][0]["age_s"] >= 0


def test_show_a_client_and_a_call(url: str, capsys: Any) -> None:
    """show names what is acknowledged and recorded; a response only if asked for."""
    assert main(["show", url, "1"]) == ExitCode.DONE
    assert "below 4, and 5-5 above" in capsys.readouterr().out
    assert main(["show", url, "1/7"]) == ExitCode.DONE
    text = capsys.readouterr().out
    assert "FAILED_PRECONDITION" in text
    assert "not enough money" in text
    assert main(["show", url, "1025/order-17", "--json"]) == ExitCode.DONE
    capsys.readouterr()
    key = b"order-17".hex()
    assert main(["show", url, f"1025/0x{key}", "--json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["key"], found["record"]["response_bytes"]) == (key, 7)
    assert "response_hex" not in found["record"]
    assert main(["show", url, f"1025/0x{key}", "--json", "--response"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["record"]["response_hex"] == "0a0568656c6c6f"


def test_release_warns_and_wants_to_be_sure(url: str, capsys: Any) -> None:
    """Without --yes nothing is forgotten, with it the one call is."""
    assert main(["release", url, "1/4"]) == ExitCode.USAGE
    assert "RUNS AGAIN" in capsys.readouterr().err
    assert main(["release", url, "1/4", "--yes"]) == ExitCode.DONE
    assert main(["release", url, "1/4", "--yes"]) == ExitCode.NOT_FOUND
    assert main(["show", url, "1/6"]) == ExitCode.DONE


def test_release_is_refused_while_owned(url: str, capsys: Any) -> None:
    """A running server would not notice, so its store is left alone."""
    with rifl.Deduplicator(url):
        assert main(["release", url, "1/6", "--yes"]) == ExitCode.OWNED
        error = capsys.readouterr().err
        assert str(os.getpid()) in error
        assert main(["inspect", url]) == ExitCode.DONE
        assert f"pid {os.getpid()}" in capsys.readouterr().out
    assert main(["release", url, "1/6", "--yes"]) == ExitCode.DONE


def test_a_session_is_ended_by_its_name(url: str, capsys: Any) -> None:
    """Not while a server owns the store, which does it itself; and once (DESIGN §5)."""
    end = ["end-session", url, "orders"]
    assert main(end) == ExitCode.USAGE
    assert "refused" in capsys.readouterr().err
    with rifl.Deduplicator(url, sessions_from="anyone") as dedup:
        assert main([*end, "--yes"]) == ExitCode.OWNED
        (client_id,) = dedup.end_session("nightly") or [0]
    assert client_id == 0
    assert main([*end, "--yes"]) == ExitCode.DONE
    assert re.search(r"ended: \d+$", capsys.readouterr().out, re.MULTILINE)
    assert main([*end, "--yes"]) == ExitCode.NOT_FOUND
    assert main(["inspect", url]) == ExitCode.DONE
    assert "orders (closed)" in capsys.readouterr().out


def test_export_to_csv_and_parquet(url: str, tmp_path: Path, capsys: Any) -> None:
    """Both files hold one row a call, with the same values."""
    out = tmp_path / "calls.csv"
    assert main(["export", url, "--out", str(out), "--responses"]) == ExitCode.DONE
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["intent", "recorded", "recorded", "recorded"]
    assert rows[3]["key"] == b"order-17".hex()
    assert rows[3]["session"] == "orders"
    assert rows[3]["response"] == "0a0568656c6c6f"
    parquet = tmp_path / "calls.parquet"
    assert main(["export", url, "--out", str(parquet), "--json"]) == ExitCode.DONE
    table = pyarrow.parquet.read_table(parquet).to_pylist()
    assert [row["seq"] for row in table] == [4, 6, 7, None]
    assert table[3]["key"] == b"order-17"
    assert "response" not in table[3]
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"calls_exported": 4}
    assert not list(tmp_path.glob("*.part"))


def test_parquet_without_its_extra(
    url: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pyarrow is not installed, the error names the extra."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", url, "--out", str(tmp_path / "a.parquet")]) == ExitCode.MISSING_EXTRA
    assert "rifl-grpc[export]" in capsys.readouterr().err
    assert not (tmp_path / "a.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["inspect", "sqlite:////no/such/file"], ExitCode.UNAVAILABLE),
        (["inspect", "memory:"], ExitCode.USAGE),
        (["inspect", "nonsense"], ExitCode.USAGE),
        (["show", "URL", "x"], ExitCode.USAGE),
        (["show", "URL", "1/0xzz"], ExitCode.USAGE),
        (["show", "URL", "0"], ExitCode.USAGE),
        (["show", "URL", "42"], ExitCode.NOT_FOUND),
        (["show", "URL", "1/42"], ExitCode.NOT_FOUND),
        (["release", "URL", "1", "--yes"], ExitCode.USAGE),
        (["export", "URL", "--out", "file.xls"], ExitCode.USAGE),
        (["export", "URL", "--out", "/no/such/dir/file.csv"], ExitCode.UNAVAILABLE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value.name,
)
def test_errors_are_one_line_and_a_code(
    url: str, capsys: Any, arguments: list[str], code: ExitCode
) -> None:
    """What cannot be done is one line on standard error and a documented code."""
    assert main([url if argument == "URL" else argument for argument in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rifl: ")
    assert captured.err.count("\n") == 1


def test_garbage_is_one_line(tmp_path: Path, capsys: Any) -> None:
    """A file that is no database is said to be that (DESIGN §6)."""
    path = tmp_path / "garbage.db"
    path.write_bytes(b"garbage" * 1000)
    assert main(["inspect", f"sqlite:///{path}"]) == ExitCode.UNAVAILABLE
    assert capsys.readouterr().err.count("\n") == 1


def test_a_text_may_be_a_seq_or_a_key() -> None:
    """Digits are a seq first; a key is text, or 0x and hexadecimal (DESIGN §3)."""
    assert candidates("12") == 12
    assert candidates("12/31") == [RpcId(12, 31), RpcId(12, None, b"31")]
    assert candidates("12/0x31") == [RpcId(12, None, b"1")]
    assert candidates("12/ff") == [RpcId(12, None, b"ff")]
    assert candidates("12/0xff") == [RpcId(12, None, b"\xff")]
    assert candidates("12/a ") == [RpcId(12, None, b"a ")]
    assert candidates("12/order/7") == [RpcId(12, None, b"order/7")]
    assert candidates("12/Ü") == [RpcId(12, None, "Ü".encode())]
    assert candidates("-5") == -5
    assert candidates("-5/31") == [RpcId(-5, None, b"31")]
    for text in (
        "",
        "a",
        "12/",
        "12/0x",
        "12/0xyz",
        "12/0x" + "00" * 256,
        "12/" + "a" * 256,
        "-0",
        "--1",
        "1" * 30,
        "٣",
    ):
        with pytest.raises(ValueError, match="is n"):
            candidates(text)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"order-17", "order-17"),
        ("Käse/7".encode(), "Käse/7"),
        (b"ab12", "ab12"),
        (b"6f72", "6f72"),
        ("\u00e9".encode(), "\u00e9"),
        # A seq, not text, and what would break a line, or is copied as another: the bytes.
        (b"17", "0x3137"),
        (b"0x17", "0x30783137"),
        (b"0x", "0x3078"),
        (b"0xyz", "0x3078797a"),
        (b"\xff\xfe", "0xfffe"),
        (b"two words", "0x74776f20776f726473"),
        (b"a\nb", "0x610a62"),
        ("e\u0301".encode(), "0x65cc81"),
    ],
)
def test_a_key_that_is_text_is_shown_as_text(key: bytes, text: str) -> None:
    """If what is shown means that key alone, so that it can be given back (DESIGN §3)."""
    assert shown(RpcId(12, None, key)) == f"12/{text}"
    assert candidates(f"12/{text}") == [RpcId(12, None, key)]
    # So do errors and events name it.
    assert candidates(str(RpcId(12, None, key))) == [RpcId(12, None, key)]
    assert shown(RpcId(12, 7)) == "12/7"
    assert shown(RpcId(-5, None, b"17")) == "-5/17"


def test_on_a_terminal_it_is_a_table(url: str) -> None:
    """The installed module draws a table where its output is a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rifl", "inspect", url], stdout=follower, cwd=ROOT
    )
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:
        # How a pseudo-terminal says that the other side is closed.
        pass
    finally:
        os.close(leader)
    assert process.wait(20) == ExitCode.DONE
    assert "┃".encode() in shown


def test_keys_of_a_peers_namespace_show_and_are_released(tmp_path: Path, capsys: Any) -> None:
    """Calls by a plain idempotency-key are listed and released as all others (DESIGN §3)."""
    url = f"sqlite:///{tmp_path / 'rifl.db'}"
    with (
        rifl.Deduplicator(url, keys_from="anyone") as dedup,
        served(dedup) as target,
        grpc.insecure_channel(target) as channel,
    ):
        metadata = [("idempotency-key", "order-17")]
        channel.unary_unary(METHOD)(b"x", metadata=metadata, timeout=20)
    assert main(["inspect", url, "--json"]) == ExitCode.DONE
    (client,) = json.loads(capsys.readouterr().out)["clients"]
    (rpc_id,) = [str(call.rpc_id) for call in _calls(url)]
    assert rpc_id.startswith(f"{client['client_id']}/")
    assert client["client_id"] < 0
    assert main(["show", url, rpc_id]) == ExitCode.DONE
    assert main(["release", url, rpc_id, "--yes"]) == ExitCode.DONE
    assert not _calls(url)


def _calls(url: str) -> list[CallRow]:
    with closing(open_inspection(url)) as store:
        return list(store.calls())


def test_the_secret_is_rotated_beside_a_server(url: str, capsys: Any) -> None:
    """rotate-secret works on an owned store, whose server looks for it (DESIGN §5)."""
    with rifl.Deduplicator(url):
        assert main(["rotate-secret", url, "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out) == {"key_id": 1}


@pytest.mark.parametrize("extra", ["redis", "postgres", "mysql"])
def test_a_store_without_its_extra(
    extra: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL whose extra is missing ends with that, not with wrong usage (commands.md)."""
    monkeypatch.setitem(sys.modules, f"rifl._stores.{extra}", None)
    scheme = "postgresql" if extra == "postgres" else extra
    assert main(["inspect", f"{scheme}://127.0.0.1:1"]) == ExitCode.MISSING_EXTRA
    assert f"rifl-grpc[{extra}]" in capsys.readouterr().err
