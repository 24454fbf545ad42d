"""Metadata that gRPC can send (gRPC over HTTP/2, Custom-Metadata)."""

from __future__ import annotations

import re

_NAME = re.compile(r"[0-9a-z_.\-]+")
_TEXT = re.compile(r"[\x20-\x7e]*")


def is_sendable(name: str, value: object) -> bool:
    """Whether gRPC can send an entry of this name, and of this value if that is text."""
    if not _NAME.fullmatch(name):
        return False
    return name.endswith("-bin") or not isinstance(value, str) or bool(_TEXT.fullmatch(value))
