"""The folders of files: a name in one is durable once the folder is synced."""

from __future__ import annotations

import os
from pathlib import Path

from _rifl_ground.system import sync


def sync_folder(folder: Path) -> None:
    """Make the names in it durable; a file's is not before its folder is. Raises ``OSError``."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(opened)
    finally:
        os.close(opened)
