"""``curp log doctor``: what the start of a replica would refuse, or is weak; it only reads (§7)."""

from __future__ import annotations

import secrets
import shutil

import pytest

from _rifl_ground.exits import ExitCode
from curp.log import open_engine
from curp.log._commands import main
from curp.log._errors import CorruptLog
from tests.curp.log.conformance import Writer
from tests.curp.logs import opened_new
from tests.helpers.doctoring import beside, files_of, looked


@pytest.fixture(params=["sqlite", "redis", "postgres", "etcd"])
def url(request, tmp_path):
    """A place without a log, in each engine."""
    group = f"g{secrets.token_hex(4)}"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'log.db'}?group={group}"
    return request.getfixturevalue(f"shared_{request.param}").url(group=group)


def _look(url, capsys):
    return looked(main, url, capsys)


def test_a_group_goes_on_and_a_log_that_is_missing_is_told(url, capsys):
    """Appends are answered before, during and after (DESIGN §7)."""
    found = _look(url, capsys)
    assert found.code is ExitCode.NOT_FOUND
    assert found.only("missing", "log")
    engine = opened_new(url)
    writer = Writer(engine)

    with beside(lambda: writer.append(b"one")):
        found = _look(url, capsys)
    assert (found.code, found.bad) == (ExitCode.DONE, [])
    engine.close()
    assert _look(url, capsys).bad == []


def test_a_file_that_lacks_commits_is_refused_and_not_touched(tmp_path, capsys):
    """As by a replica's start (DESIGN §7)."""
    kept = tmp_path / "kept"
    kept.mkdir()
    url = f"sqlite:///{kept / 'log.db'}?group=bank"
    opened_new(url).close()
    shutil.copy(kept / "log.db", tmp_path / "older")
    engine = open_engine(url)
    Writer(engine).append(b"one")
    engine.close()
    assert _look(url, capsys).bad == []
    shutil.copy(tmp_path / "older", kept / "log.db")
    before = files_of(kept)
    found = _look(url, capsys)
    assert found.code is ExitCode.REFUSED
    assert " commits that were acknowledged" in found.only("error", "log")
    assert files_of(kept) == before
    with pytest.raises(CorruptLog, match="commits that were acknowledged"):
        open_engine(url)


def test_a_wrong_url_is_one_sentence(capsys):
    """A log's URL names its group."""
    assert main(["doctor", "sqlite:///x.db"]) == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 1
