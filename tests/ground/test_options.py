"""Options that commands of several packages have: where a URL comes from (operations)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import rifl
import sharedlog
from curp._cli.command import main as curp
from curp.log import create_log
from rifl._cli import main as rifl_main
from sharedlog._cli.command import main as log_main


def _rifl(url: str, *given: str) -> int:
    return int(rifl_main(["inspect", *given]))


def _sharedlog(url: str, *given: str) -> int:
    return int(log_main(["streams", *given]))


def _curp(url: str, *given: str) -> int:
    return int(curp(["log", "verify", *given]))


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What a command looks at."""
    found = f"sqlite:///{tmp_path}/a.db"
    if request.param is _rifl:
        rifl.Deduplicator(found).close()
    elif request.param is _sharedlog:
        sharedlog.create(found).close()
    else:
        found = f"{found}?group=shop"
        create_log(found)
    return found


@pytest.mark.parametrize(
    ("url", "run"), [(each, each) for each in (_rifl, _sharedlog, _curp)], indirect=["url"]
)
def test_a_url_is_given_by_a_file_or_the_environment(
    url: str,
    run: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No other user of the machine sees its password in the arguments."""
    monkeypatch.delenv("RIFL_STORE", raising=False)
    file = tmp_path / "url"
    file.write_text(f"{url}\n")
    assert run(url, "-", "--store-file", str(file)) == 0
    assert run(url, url) == 0
    assert run(url, "-") == 2
    assert "RIFL_STORE" in capsys.readouterr().err
    assert run(url, url, "--store-file", str(file)) == 2
    assert run(url, "-", "--store-file", str(tmp_path / "none")) == 1
    monkeypatch.setenv("RIFL_STORE", url)
    assert run(url, "-") == 0
    # What is given counts.
    monkeypatch.setenv("RIFL_STORE", "nowhere://")
    assert run(url, url) == 0


@pytest.mark.parametrize(
    ("run", "command"),
    [
        (rifl_main, ["lease-server", "--listen", "127.0.0.1:0"]),
        (curp, ["init"]),
        (curp, ["serve", "a:B", "--name", "r", "--listen", "127.0.0.1:0"]),
        (log_main, ["serve", "--listen", "127.0.0.1:0"]),
        (log_main, ["play", "--config", __file__]),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_commands_whose_url_is_an_option_take_it_so_too(
    run: Callable[[list[str]], int],
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without any it is a usage error; an empty file has none."""
    monkeypatch.delenv("RIFL_STORE", raising=False)
    (tmp_path / "empty").touch()
    for more in ([], ["--store-file", str(tmp_path / "empty")]):
        assert run([*command, *more]) == 2
        assert "there is no URL" in capsys.readouterr().err
