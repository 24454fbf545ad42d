"""Access to a served log: who calls, and what they may do (DESIGN-LOG §12, L8)."""

from __future__ import annotations

import hmac
import shlex
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

from _rifl_ground.refusals import Denied
from rifl._grpc.certificates import names_of
from rifl._grpc.source import source_of
from sharedlog._core.errors import NotAllowed
from sharedlog._core.names import owner_of
from sharedlog._service.settings import AccessRule, ServerSettings
from sharedlog._wire.methods import TOKEN_KEY, TOKEN_PREFIX


class Context(Protocol):
    """The part of a ServicerContext that tells who calls."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """What came with the call."""

    def peer(self) -> str:
        """The other end's address."""

    def auth_context(self) -> Mapping[str, Any]:
        """What the channel knows of the other end: name to values."""


class Caller(NamedTuple):
    """Who calls, and what the entries that name it allow; None: everything.

    ``name``: for quotas: that of its token, or all names in its certificate, or its address.
    """

    name: str
    entries: tuple[AccessRule, ...] | None

    @property
    def admin(self) -> bool:
        """Whether it may do everything."""
        return self.entries is None or any(each.admin for each in self.entries)

    def may_publish(self, stream: str) -> bool:
        """Whether it may publish to a stream."""
        return self.admin or _named(stream, [each.publish for each in self.entries or ()])

    def may_follow(self, stream: str) -> bool:
        """Whether it may read a stream."""
        return self.admin or _named(stream, [each.follow for each in self.entries or ()])

    def may_use(self, stream: str) -> bool:
        """Whether a stream is anything to it."""
        return self.may_publish(stream) or self.may_follow(stream)

    def check_publish(self, stream: str) -> None:
        """Raise ``NotAllowed`` unless it may publish to a stream."""
        if not self.may_publish(stream):
            raise _lacks("publish", f"{self.name} may not publish to {stream!r}")

    def check_follow(self, stream: str) -> None:
        """Raise ``NotAllowed`` unless it may read a stream."""
        if not self.may_follow(stream):
            raise _lacks("follow", f"{self.name} may not follow {stream!r}")

    def check_name(self, name: str) -> None:
        """Raise ``NotAllowed`` unless the name of a producer, hold or fence is for it."""
        kind, owner = owner_of(name)
        if not self.admin and not _named(owner, [each.owners(kind) for each in self.entries or ()]):
            raise _lacks("name", f"the name {name[:200]!r} is not for {self.name}")

    def check_admin(self) -> None:
        """Raise ``NotAllowed`` unless it may administer the log."""
        if not self.admin:
            raise _lacks("admin", f"{self.name} may not administer the log")

    def check_player(self, name: str) -> None:
        """Raise ``NotAllowed`` unless it may be, or operate, the player of this name; "": all."""
        if not name:
            self.check_admin()
        elif not self.admin and not _named(name, [each.play for each in self.entries or ()]):
            raise _lacks("play", f"the player {name[:200]!r} is not for {self.name}")

    def check_publisher(self) -> None:
        """Raise ``NotAllowed`` for who may publish nothing at all."""
        if not self.admin and not any(each.publish for each in self.entries or ()):
            raise _lacks("publish", f"{self.name} may publish nothing")


class Access:
    """Knows callers by their tokens and certificates."""

    def __init__(self, settings: ServerSettings, tokens: Mapping[str, bytes] | None) -> None:
        """``tokens``: by name; None: none is asked for."""
        self._known = settings.allow, tokens

    def replace(self, settings: ServerSettings, tokens: Mapping[str, bytes] | None) -> None:
        """Judge by these from now on; any thread."""
        self._known = settings.allow, tokens

    def caller(self, context: Context) -> Caller:
        """Return who calls.

        Raises ``NotAllowed`` if a token is asked for and none is shown, and for a certificate
        without a name.
        """
        peers = names_of(context.auth_context())
        if peers == ():
            raise NotAllowed(
                "the certificate has no name that gRPC shows: give it a DNS name",
                Denied("certificate", "unnamed"),
            )
        allow, tokens = self._known
        token = None
        if tokens is not None:
            token = _token(tokens, context.invocation_metadata() or ())
            if token is None and not peers:
                raise NotAllowed(
                    "a token of this server's is asked for, and none was shown",
                    Denied("log_token", "missing"),
                )
        # Quoted, so that no two lists of names read the same.
        name = token or shlex.join(peers or ()) or source_of(context.peer())
        if allow is None:
            return Caller(name, None)
        mine = [
            each
            for each in allow
            if each.token in ("", token) and (not each.peer or each.peer in (peers or ()))
        ]
        return Caller(name, tuple(mine))


def _token(tokens: Mapping[str, bytes], metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    for key, value in metadata:
        if key == TOKEN_KEY and isinstance(value, str) and value.startswith(TOKEN_PREFIX):
            shown = value.removeprefix(TOKEN_PREFIX).encode()
            for name, token in tokens.items():
                if hmac.compare_digest(token, shown):
                    return name
            raise NotAllowed("the token is unknown to this server", Denied("log_token", "wrong"))
    return None


def _lacks(right: str, text: str) -> NotAllowed:
    return NotAllowed(text, Denied("right", right))


def _named(name: str, patterns: Iterable[Iterable[str]]) -> bool:
    return any(fnmatchcase(name, each) for some in patterns for each in some)
