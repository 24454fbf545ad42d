"""A page's files and commands, typed from an empty folder as they are printed; output included."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.pages import DOCS, ROOT
from tests.helpers.ports import free_port

__all__ = ["typed"]

_FOLDER = DOCS / "tutorials"
# A block, and the last name in the sentence before it if that ends with a colon.
_BLOCK = re.compile(
    r"(?:`(?P<file>[\w.]+)`:\n\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_COMMAND = re.compile(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_PORT = re.compile(r"127\.0\.0\.1:(500\d\d)")
# bash says so of a process that was killed; the pages say that they leave it out.
_JOB = re.compile(r"^.*: line \d+: +\d+ Killed .*\n", re.MULTILINE)
_MARK = "-- the next command --"
# Processes start one after another, on a machine that does other things, too.
_LONG_S = 280.0


class Step(NamedTuple):
    """A file that is written, or a command with what it prints."""

    file: str | None
    text: str
    printed: str = ""


def steps(page: str) -> Iterator[Step]:
    """Yield what a reader does, in order."""
    for block in _BLOCK.finditer(page):
        if block["file"]:
            yield Step(block["file"], block["text"])
        elif block["kind"] == "console":
            found = list(_COMMAND.finditer(block["text"]))
            assert "".join(each[0] for each in found) == block["text"]
            yield from (Step(None, each[1], each[2]) for each in found)
        else:
            # What installs and starts servers.
            assert block["kind"] == "sh", block["text"]


def typed(name: str, directory: Path, **settings: str) -> None:
    """Write the page's files and run its commands, in one bash; compare what each prints."""
    folder = directory / "reader"
    folder.mkdir()
    page = (_FOLDER / name).read_text()
    assert len(page.split()) <= 1000
    for port in sorted(set(_PORT.findall(page))):
        page = page.replace(f":{port}", f":{free_port()}")
    found = list(steps(page))
    script = [f"_next() {{ echo; echo '{_MARK}'; }}"]
    for number, step in enumerate(found):
        if step.file:
            # A later block may write the file anew.
            source = directory / f"{number}"
            source.write_text(step.text)
            script.append(f"cp '{source}' {step.file}")
        else:
            script.append(f"{step.text}\n_next")
    printed = _run("\n".join(script), folder, settings)
    commands = [step for step in found if not step.file]
    outputs = [each.rstrip("\n") for each in printed.split(f"\n{_MARK}\n")]
    got = [f"$ {step.text}\n{text}" for step, text in zip(commands, outputs, strict=False)]
    wanted = [f"$ {step.text}\n{step.printed}".rstrip("\n") for step in commands]
    logs = {each.name: each.read_text() for each in folder.glob("*.err")}
    assert [each.rstrip("\n") for each in got] == wanted, logs


def _run(script: str, folder: Path, settings: Mapping[str, str]) -> str:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RIFL_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        **settings,
    }
    with subprocess.Popen(
        ["bash", "-c", script],  # noqa: S607 - the reader's
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            printed, _ = shell.communicate(timeout=_LONG_S)
        except subprocess.TimeoutExpired as late:
            pytest.fail(f"after {_LONG_S} s only: {(late.stdout or b'').decode()}")
        finally:
            # With what still runs in the background.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    return _JOB.sub("", printed)
