"""Access to a target: which players may deliver (DESIGN-LOG §15)."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from _rifl_ground.refusals import Denied
from rifl._grpc.certificates import name_of, names_of
from sharedlog._core.errors import InvalidRequest, NotAllowed
from sharedlog._wire.methods import TOKEN_KEY, TOKEN_PREFIX


class PlayerAccess:
    """Lets players in that show a token, or a certificate with one of these names.

    By default every client that reaches the server can deliver.
    """

    def __init__(
        self, token: str | bytes | Sequence[str | bytes] | None, peers: Collection[str] | None
    ) -> None:
        """``token``: or several. ``peers``: names in certificates.

        Raises ``InvalidRequest`` if no caller could get in.
        """
        given = () if token is None else (token,) if isinstance(token, str | bytes) else token
        self._tokens = [each.encode() if isinstance(each, str) else bytes(each) for each in given]
        lacking = not all(self._tokens) or (token is not None and not self._tokens)
        if lacking or (peers is not None and not peers) or isinstance(peers, str):
            raise InvalidRequest(
                "a token must not be empty, and peers must be names in certificates"
            )
        try:
            self._peers = None if peers is None else frozenset(map(name_of, peers))
        except ValueError as error:
            raise InvalidRequest(f"peers: {error}") from error

    @property
    def is_open(self) -> bool:
        """Whether every client may deliver."""
        return not self._tokens and self._peers is None

    def check(self, context: Any) -> None:
        """Raise ``NotAllowed`` unless who calls may deliver: by its token, or by its name."""
        if self.is_open:
            return
        names = names_of(context.auth_context()) if self._peers else None
        if self._peers and not self._peers.isdisjoint(names or ()):
            return
        shows = self._shows_token(context.invocation_metadata() or ())
        if shows:
            return
        raise NotAllowed(
            "this target does not accept this player's token or certificate",
            Denied("target_token", "wrong")
            if shows is False
            else Denied("certificate", "unlisted")
            if names is not None
            else Denied("target_token" if self._tokens else "certificate", "missing"),
        )

    def _shows_token(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool | None:
        """Return whether a token that is shown is one of these; None: none is shown."""
        for key, value in metadata:
            if key == TOKEN_KEY and isinstance(value, str) and value.startswith(TOKEN_PREFIX):
                shown = value.removeprefix(TOKEN_PREFIX).encode()
                return any(hmac.compare_digest(each, shown) for each in self._tokens)
        return None
