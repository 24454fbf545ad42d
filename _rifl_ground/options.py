"""The options that commands of several packages have."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from _rifl_ground.plaintext import VARIABLE


class AllowPlaintext(argparse.Action):
    """``--plaintext-secrets`` permits plaintext for a command's process, as the variable does."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        text = "send tokens and secrets over connections that only a mesh or a proxy encrypts"
        super().__init__(option_strings, dest, nargs=0, default=False, help=text)

    def __call__(self, parser: object, namespace: object, values: object, *more: object) -> None:
        """Set the variable."""
        os.environ[VARIABLE] = "1"
