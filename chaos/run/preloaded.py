"""Libraries that are preloaded into processes of a run, and the files they are told by."""

from __future__ import annotations

import mmap
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from chaos.programs import NotInstalled

__all__ = ["NoCompiler", "compile_library", "preload", "shared_file"]

_PRELOAD = "LD_PRELOAD"


class NoCompiler(NotInstalled):
    """What is preloaded cannot be compiled on this machine."""


def compile_library(source: Path, directory: Path) -> Path:
    """Compile a file of C by the machine's compiler; raises ``NoCompiler``."""
    library = directory / f"{source.stem}.so"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise NoCompiler(
            f"wrong clocks and slow disks are a few lines of C each ({source.name}), and there is "
            f"no C compiler {' '.join(compiler)!r} on the PATH: install one, or name it in CC"
        )
    command = [*compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCompiler(f"{shlex.join(command)} failed: {done.stderr[-2000:]}")
    return library


def shared_file(path: Path, size: int) -> mmap.mmap:
    """Make a file of zeros that a process and we have in common."""
    path.write_bytes(bytes(size))
    # PostgreSQL runs as another user, and writes into it, too.
    path.chmod(0o666)
    with path.open("r+b") as opened:
        return mmap.mmap(opened.fileno(), size)


def preload(environment: dict[str, str], more: Mapping[str, str]) -> None:
    """Add what another library needs to what a process is started with; twice is as once."""
    libraries = environment.get(_PRELOAD, "").split(":") + more.get(_PRELOAD, "").split(":")
    environment.update(more)
    environment[_PRELOAD] = ":".join(dict.fromkeys(filter(None, libraries)))
