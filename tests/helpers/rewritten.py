"""The tests as pytest rewrites them for its assertions, compiled once before workers collect.

Else each worker, which collects all files, rewrites all of them in a tree that has no
``__pycache__`` yet: 14 s of a core, in each.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from pathlib import Path
from unittest.mock import patch

from _pytest.assertion import rewrite
from _pytest.config import get_config

__all__ = ["compile_all"]

_NAMES = ("test_*.py", "conftest.py")


def compile_all(root: Path) -> None:
    """Rewrite what pytest would under ``root``, by all cores, and keep it where pytest looks.

    What fits its source already stays. No test module runs.
    """
    config = get_config()
    # It loads these tests' conftest, and so what the forked processes import.
    config.parse([str(Path(__file__).parents[1])])
    global _hook
    _hook = config.pluginmanager.rewrite_hook
    files = sorted(file for name in _NAMES for file in root.rglob(name))
    with multiprocessing.get_context("fork").Pool() as pool:
        pool.map(_compile, files, chunksize=8)


def _compile(file: Path) -> None:
    spec = importlib.util.spec_from_file_location(file.stem, file, loader=_hook)
    assert spec is not None
    # To load a module is to rewrite it, to keep that, and to run it: here all but the last.
    with patch.object(rewrite, "exec", lambda *_: None, create=True):
        _hook.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]))
