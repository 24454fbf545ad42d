"""The callers that may open named sessions: with a certificate, a secret, or neither."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from _rifl_ground.refusals import Denied
from lease_server._session_secret import check_secrets, not_yours, verifier
from lease_server._sessions import SessionsFrom
from rifl._grpc.certificates import name_of
from rifl._leases.peer import values_of
from rifl.core._shared.errors import NotYours


class SessionOpeners:
    """What ``sessions_from`` says; immutable, any thread.

    One of ``SessionsFrom``, or a list of names: then a caller needs a certificate with one of
    them, as its identity has them (see ``peer_of``).
    """

    def __init__(self, given: SessionsFrom | str | Collection[str]) -> None:
        """Raise ``ValueError`` for a word that is none of ``SessionsFrom``, or no names."""
        self._names: frozenset[bytes] | None = None
        if isinstance(given, SessionsFrom | str):
            self._without = SessionsFrom(given)
            return
        self._without = SessionsFrom.PEERS
        if not given or not all(isinstance(each, str) and each for each in given):
            raise ValueError("sessions_from needs at least one name, and none that is empty")
        self._names = frozenset(_spelled(each).encode() for each in given)

    @classmethod
    def of(cls, given: SessionOpeners | SessionsFrom | str | Collection[str]) -> SessionOpeners:
        """Return what is given, read if it was not yet."""
        return given if isinstance(given, SessionOpeners) else cls(given)

    def shown(
        self, secret: bytes, name: str, peer: bytes, older: Sequence[bytes] = ()
    ) -> tuple[bytes, ...]:
        """Return what a caller shows for a session: the verifiers of its secret and older ones.

        The first is empty if its channel says who it is, or for one without a secret.
        Raises ``NotYours`` for a caller that may open none, ``BadHeader`` for a bad secret.
        """
        if peer:
            if self._names is not None and self._names.isdisjoint(values_of(peer)):
                raise NotYours(
                    "the session is not yours: only certificates that sessions_from names open "
                    "sessions here",
                    Denied("certificate", "unlisted"),
                )
            return (b"",)
        if self._without is SessionsFrom.PEERS:
            raise NotYours(
                "the session is not yours: sessions_from lets callers with a certificate open "
                "sessions here, and no others",
                Denied("certificate", "missing"),
            )
        if secret or older:
            check_secrets(secret, older)
            return tuple(verifier(each, name) for each in (secret, *older))
        if self._without is not SessionsFrom.ANYONE:
            raise not_yours("missing")
        return (b"",)


def _spelled(name: str) -> str:
    try:
        return name_of(name)
    except ValueError:
        # A value of the property that says who a peer is.
        return name


def session_openers(text: str) -> SessionOpeners:
    """Return what an argument of a command says: a word, or ``kind:name,kind:name``."""
    return SessionOpeners(text.split(",") if ":" in text else text)
