"""Tools that ``make`` brings where they are missing, or says that they are (developing.md)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_JAVA = "#!/bin/sh\necho 'openjdk version \"{}.0.1\"' >&2\n"
_APT = '#!/bin/sh\necho "$@" >>"{log}"\ncase "$1" in install) cp "{java}" "{folder}/java";; esac\n'


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with little on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sh", "grep", "find", "sort", "cp"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def _make_java(tools: Path, *, root: bool, **more: str) -> subprocess.CompletedProcess[str]:
    _script(tools / "id", f"#!/bin/sh\necho {0 if root else 1000}\n")
    make = shutil.which("make")
    assert make is not None
    return subprocess.run(
        [make, "--no-print-directory", "java"],
        cwd=ROOT,
        env={"PATH": str(tools), **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _with_apt(tools: Path, version: int) -> Path:
    new, log = tools.parent / "new-java", tools.parent / "log"
    _script(new, _JAVA.format(version))
    _script(tools / "apt-get", _APT.format(log=log, java=new, folder=tools))
    return log


def test_a_java_is_brought_where_there_is_none(tools: Path) -> None:
    """As root, by Debian's own package, as PostgreSQL is; one that is there is left alone."""
    log = _with_apt(tools, 17)
    done = _make_java(tools, root=True)
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines()[-1].endswith("default-jre-headless")
    os.remove(log)
    assert _make_java(tools, root=True).returncode == 0
    assert not log.exists()


@pytest.mark.parametrize("case", ["not root", "no apt-get", "too old", "JAVA_HOME"])
def test_else_one_line_says_what_to_install(tools: Path, case: str) -> None:
    """Nobody is left with a stack trace of Spark's."""
    more = {}
    if case != "no apt-get":
        _with_apt(tools, 11 if case == "too old" else 17)
    if case == "JAVA_HOME":
        more["JAVA_HOME"] = str(tools.parent)
    done = _make_java(tools, root=case != "not root", **more)
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].endswith("apt-get install default-jre-headless")


def test_every_target_is_listed() -> None:
    """No file of its name keeps one from being made; `make help` names what measures and tests."""
    text = (ROOT / "Makefile").read_text()
    heads = re.findall(r"^([a-z][a-z0-9 -]*):(?!=)", text, re.MULTILINE)
    targets = {name for head in heads for name in head.split()}
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    shown = re.search(r"^\t@echo \"make (.*)\"$", text, re.MULTILINE)
    assert phony is not None
    assert shown is not None
    assert targets - set(phony[1].split()) == set()
    named = {name for name in targets if name.startswith(("bench", "chaos", "demo", "test"))}
    assert named - set(shown[1].split(" | ")) == set()
