"""Access to a target: which players may deliver (DESIGN-LOG §15)."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sharedlog._core.errors import InvalidRequest, NotAllowed
from sharedlog._wire.methods import TOKEN_KEY, TOKEN_PREFIX

_CERTIFIED = ("x509_subject_alternative_name", "x509_common_name")


class PlayerAccess:
    """Lets players in that show a token, or a certificate with one of these names.

    By default every client that reaches the server can deliver.
    """

    def __init__(self, token: str | bytes | None, peers: Collection[str] | None) -> None:
        """``peers``: names in certificates; raises ``InvalidRequest`` if no caller could get in."""
        self._token = token.encode() if isinstance(token, str) else token
        self._peers = None if peers is None else frozenset(peers)
        if self._token == b"" or self._peers == frozenset() or isinstance(peers, str):
            raise InvalidRequest(
                "a token must not be empty, and peers must be names in certificates"
            )

    @property
    def is_open(self) -> bool:
        """Whether every client may deliver."""
        return self._token is None and self._peers is None

    def check(self, context: Any) -> None:
        """Raise ``NotAllowed`` unless who calls may deliver: by its token, or by its name."""
        if self.is_open:
            return
        if self._peers is not None and not self._peers.isdisjoint(_names(context.auth_context())):
            return
        if self._token is not None and self._shows_token(context.invocation_metadata() or ()):
            return
        raise NotAllowed("this target does not accept this player's token or certificate")

    def _shows_token(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        for key, value in metadata:
            if key == TOKEN_KEY and isinstance(value, str) and value.startswith(TOKEN_PREFIX):
                shown = value.removeprefix(TOKEN_PREFIX).encode()
                return hmac.compare_digest(self._token or b"", shown)
        return False


def _names(known: Mapping[str, Any]) -> set[str]:
    """Return the names in the caller's certificate."""
    shown = (value for name in _CERTIFIED for value in known.get(name) or ())
    return {value.decode(errors="replace") for value in shown if value}
