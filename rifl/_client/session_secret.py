"""The secrets of a channel's named session: given, or found in the environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from lease_server._session_secret import MAX_OLDER_SECRETS, MAX_SECRET_BYTES, MIN_SECRET_BYTES

VARIABLE = "RIFL_SESSION_SECRET"
FILE_VARIABLE = "RIFL_SESSION_SECRET_FILE"


class _Shown(TypedDict):
    secret: bytes
    older_secrets: Sequence[bytes]


def find_session_secrets(
    given: str | bytes | Sequence[str | bytes] | None = None,
) -> tuple[bytes, ...]:
    """Return the secrets that open this process's sessions, empty if there is none.

    Sessions open by the first one from then on; others open them, too. They are ``given``, or
    in RIFL_SESSION_SECRET, or in the file that RIFL_SESSION_SECRET_FILE names: there a line has
    one, without white space around it. Raises ``ValueError`` if both are set, if the file cannot
    be read, for more than 4 secrets, and for one that has not 16 to 1024 bytes; no error holds one.
    """
    where = "secret"
    if given is None:
        where, found = _environment()
    elif isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Sequence):
        found = (_as_bytes(given, where),)
    elif given:
        found = tuple(_as_bytes(each, where) for each in given)
    else:
        raise ValueError("secret: an empty list opens nothing: pass a secret, or None")
    if len(found) > 1 + MAX_OLDER_SECRETS:
        raise ValueError(f"{where}: a session has at most {1 + MAX_OLDER_SECRETS} secrets")
    for each in found:
        if not MIN_SECRET_BYTES <= len(each) <= MAX_SECRET_BYTES:
            raise ValueError(
                f"{where}: a session's secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes"
            )
    return found


def shown(secrets: Sequence[bytes]) -> _Shown:
    """Return the fields by which a request shows secrets."""
    return {"secret": secrets[0] if secrets else b"", "older_secrets": secrets[1:]}


def _environment() -> tuple[str, tuple[bytes, ...]]:
    """Return the variable that counts, and the secrets in it, or in the file that it names."""
    text, path = os.environ.get(VARIABLE, ""), os.environ.get(FILE_VARIABLE)
    if text and path:
        raise ValueError(f"of {VARIABLE} and {FILE_VARIABLE} only one is set")
    where, raw = VARIABLE, _as_bytes(text, VARIABLE)
    if path:
        where = FILE_VARIABLE
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"{FILE_VARIABLE}: {error}") from error
    found = tuple(line.strip() for line in raw.split(b"\n") if line.strip())
    if not found and (text or path):
        raise ValueError(f"{where}: {path or 'it'} is empty")
    return where, found


def _as_bytes(secret: Any, where: str) -> bytes:
    if not isinstance(secret, str):
        # bytes(32) were 32 zeros, which everybody knows.
        return bytes(memoryview(secret))
    try:
        # Bytes in the environment that are no UTF-8 come as escapes: they stand for themselves.
        return secret.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # That error holds the secret.
        raise ValueError(f"{where}: a session's secret is text in UTF-8, or bytes") from None
