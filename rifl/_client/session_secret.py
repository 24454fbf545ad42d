"""The secret of a channel's named session: given, or found in the environment."""

from __future__ import annotations

import os
from pathlib import Path

from lease_server._session_secret import MAX_SECRET_BYTES, MIN_SECRET_BYTES

VARIABLE = "RIFL_SESSION_SECRET"
FILE_VARIABLE = "RIFL_SESSION_SECRET_FILE"


def find_session_secret(given: str | bytes | None = None) -> bytes:
    """Return the secret that opens this process's sessions, empty if there is none.

    ``given``, else what RIFL_SESSION_SECRET holds, or the file that RIFL_SESSION_SECRET_FILE
    names, without white space around it. Raises ``ValueError`` if both are set, if the file
    cannot be read, and for a secret that has not 16 to 1024 bytes; no error holds it.
    """
    secret, where = given, "secret"
    if secret is None:
        secret, path = os.environ.get(VARIABLE), os.environ.get(FILE_VARIABLE)
        where = VARIABLE
        if path:
            if secret:
                raise ValueError(f"of {VARIABLE} and {FILE_VARIABLE} only one is set")
            where = FILE_VARIABLE
            try:
                secret = Path(path).read_bytes()
            except OSError as error:
                raise ValueError(f"{FILE_VARIABLE}: {error}") from error
        if not secret:
            if path:
                raise ValueError(f"{FILE_VARIABLE}: {path} is empty")
            return b""
        secret = secret.strip()
    found = _as_bytes(secret, where)
    if not MIN_SECRET_BYTES <= len(found) <= MAX_SECRET_BYTES:
        raise ValueError(
            f"{where}: a session's secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes"
        )
    return found


def _as_bytes(secret: str | bytes, where: str) -> bytes:
    if not isinstance(secret, str):
        # bytes(32) were 32 zeros, which everybody knows.
        return bytes(memoryview(secret))
    try:
        # Bytes in the environment that are no UTF-8 come as escapes: they stand for themselves.
        return secret.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # That error holds the secret.
        raise ValueError(f"{where}: a session's secret is text in UTF-8, or bytes") from None
