"""The secret of a session, when the channel does not authenticate the caller (DESIGN §5). Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from _rifl_ground.refusals import BadHeader, Denied, NotYours
from lease_server._series import numbered

MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 1024
# Beside the one that a session opens by from now on.
MAX_OLDER_SECRETS = 3
_LABEL = b"rifl session secret v1\0"


def check_secrets(secret: bytes, older: Sequence[bytes] = ()) -> None:
    """Raise BadHeader unless each secret has 16 to 1024 bytes, and at most 3 are older ones."""
    if len(older) > MAX_OLDER_SECRETS:
        raise BadHeader(f"at most {MAX_OLDER_SECRETS} older secrets are shown for a session")
    for each in (secret, *older):
        if not MIN_SECRET_BYTES <= len(each) <= MAX_SECRET_BYTES:
            raise BadHeader(
                f"the secret of a session has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes"
            )


def verifier(secret: bytes, name: str) -> bytes:
    """Return what is kept of a session's secret: 32 bytes that do not give it away.

    An HMAC under the secret, salted by what it opens: the session, or the series that a
    numbered session belongs to, whose sessions end each other and so have one owner.
    Deterministic, so that a storage can compare in the step that inserts.
    """
    series = numbered(name)
    scope = b"series\0" + series[0].encode() if series else b"name\0" + name.encode()
    return hmac.new(secret, _LABEL + scope, hashlib.sha256).digest()


def require_owner(kept: bytes, secret: bytes, older: Sequence[bytes] = ()) -> None:
    """Raise NotYours unless one of the verifiers shown is the one kept, compared in constant time.

    A session without a secret keeps an empty one, and opens by that alone.
    """
    if not any(hmac.compare_digest(kept, each) for each in (secret, *older)):
        raise not_yours()


def not_yours(reason: str = "wrong") -> NotYours:
    """Build the one refusal for a secret that is missing or wrong; it tells nothing else."""
    return NotYours(
        "the session is not yours: on a channel without an authenticated peer it opens by its "
        "secret (rifl.connect(session=..., secret=...)), or the server opts in by sessions_from",
        Denied("session_secret", reason),
    )
