"""The declarations of targets, and the settings of a player."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from _rifl_ground.numbers import is_whole
from _rifl_ground.plaintext import why_not_sent
from sharedlog._core.arguments import check_time
from sharedlog._core.envelope import check_method
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.following import Moment
from sharedlog._core.holds import BEGINNING, END
from sharedlog._core.player.failing import FailurePolicy, Then
from sharedlog._core.player.feeder import FeederBounds
from sharedlog._core.player.holding import Follows
from sharedlog._core.player.rows import check_part
from sharedlog._core.position import Position
from sharedlog._core.streams import check_name

if TYPE_CHECKING:
    import grpc

Failed = Literal["stop", "dead-letter"]
Unknown = Literal["stop", "dead-letter", "again"]
_ZERO = timedelta(0)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# If nothing else is said: the stream of dead letters.
STREAM = "deadletters"
# The name of a player.
PLAYER = "player"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A gRPC server that a player calls with the messages of some streams.

    ``address``: ``HOST:PORT``, or another gRPC target. ``streams``: names; or a mapping from a name
    to the method for messages that name none. ``start``: where a new target begins:
    ``"beginning"`` of what is kept, ``"end"``, a position (after its commit), a time.

    ``tries``: how often one message may fail, None: no limit. ``failed``: what happens then;
    ``refused``: for a message that can never be called; ``unknown``: for one whose ``plain``
    handler crashed. Each is ``"stop"`` (the target), ``"dead-letter"``, or for ``unknown`` also
    ``"again"``. ``same_error``: so many dead letters in a row with the same error stop the target
    instead, 0: never.

    ``patience``: how long an answer may take. ``batch``, ``batch_bytes``, ``linger``: so many
    messages, of so many bytes, gathered for so long, travel together. ``queue``: how many messages
    wait for it in this process. ``number``: of its index; with another number it begins anew.

    ``token``, or the content of ``token_file``, is sent with each call. ``tls``: by the system's
    authorities, or the file ``authorities``; ``certificate`` and ``key``: files of the client's.
    Each of these files means TLS. Without TLS a token goes only to a loopback address,
    ``localhost`` or a unix socket, unless ``plaintext_secrets``.
    """

    name: str
    address: str
    streams: Sequence[str] | Mapping[str, str]
    start: str | Position | datetime = BEGINNING
    tries: int | None = None
    failed: Failed = "stop"
    refused: Failed = "stop"
    unknown: Unknown = "stop"
    same_error: int = 20
    patience: timedelta = timedelta(seconds=30)
    batch: int = FeederBounds().batch_count
    batch_bytes: int = FeederBounds().batch_bytes
    linger: timedelta = _ZERO
    queue: int = FeederBounds().queue_count
    number: int = 0
    token: str = field(default="", repr=False)
    token_file: str = ""
    plaintext_secrets: bool = False
    tls: bool = False
    authorities: str = ""
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        """Raise ``InvalidRequest`` for what cannot be."""
        check_part(self.name, "target")
        if isinstance(self.streams, str) or not self.streams:
            raise InvalidRequest(f"target {self.name!r} follows no stream: streams=[...]")
        for name, method in self.methods.items():
            check_name(name)
            check_method(method)
        if not isinstance(self.address, str) or ":" not in self.address:
            raise InvalidRequest(f"target {self.name!r}: address = {self.address!r}: HOST:PORT")
        self._check_numbers()
        if not isinstance(self.start, Position | datetime) and self.start not in (BEGINNING, END):
            raise InvalidRequest(f"{self.start!r:.100} is no valid start of a target")
        if not isinstance(self.token, str):
            raise InvalidRequest(f"target {self.name!r}: a token is a text")
        for name in ("tls", "plaintext_secrets"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"target {self.name!r}: {name} is true or false")
        # What it raises is raised now.
        _ = self.rules, self.follows

    def _check_numbers(self) -> None:
        if self.tries is not None:
            self._check_whole("tries", self.tries, 1)
        self._check_whole("number", self.number, 0)
        self._check_whole("same_error", self.same_error, 0)
        for name in ("batch", "batch_bytes", "queue"):
            self._check_whole(name, getattr(self, name), 1)
        check_time(self.patience, f"target {self.name!r}: patience", positive=True)
        check_time(self.linger, f"target {self.name!r}: linger")

    def _check_whole(self, name: str, value: object, least: int) -> None:
        if not is_whole(value) or value < least:
            raise InvalidRequest(
                f"target {self.name!r}: {name} = {value!r}: a whole number, {least} or more"
            )

    @property
    def methods(self) -> dict[str, str]:
        """The method of each stream for messages that name none; "": there is none."""
        streams = self.streams
        return dict(streams) if isinstance(streams, Mapping) else dict.fromkeys(streams, "")

    @property
    def follows(self) -> Follows:
        """What it follows, and from where; raises ``InvalidRequest`` for a time without a zone."""
        streams, start = tuple(sorted(self.methods)), self.start
        if not isinstance(start, datetime):
            return Follows(streams, start)
        if start.tzinfo is None:
            raise InvalidRequest("a time without a zone could be any: give it one")
        return Follows(streams, Moment((start - _EPOCH) // timedelta(microseconds=1)))

    @property
    def rules(self) -> FailurePolicy:
        """The policy for messages that fail."""
        for name, choices in (
            *(("failed", get_args(Failed)), ("refused", get_args(Failed))),
            ("unknown", get_args(Unknown)),
        ):
            value = getattr(self, name)
            if value not in choices:
                said = ", ".join(map(repr, choices))
                raise InvalidRequest(f"target {self.name!r}: {name} = {value!r} is none of {said}")
        failed, refused, unknown = Then(self.failed), Then(self.refused), Then(self.unknown)
        return FailurePolicy(self.tries, failed, refused, unknown, self.same_error)

    @property
    def bounds(self) -> FeederBounds:
        """The bounds of its queue and of its batches."""
        window = max(FeederBounds().window_count, self.batch)
        return FeederBounds(
            queue_count=self.queue,
            window_count=window,
            batch_count=self.batch,
            batch_bytes=self.batch_bytes,
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each call to it: its token.

        Raises ``InvalidRequest`` for one that may not go there, and for a file that is not there.
        """
        token = self.token
        if self.token_file:
            token = _file(self.token_file).decode("ascii", "replace").strip()
        if not token.isascii() or not token.isprintable():
            raise InvalidRequest("a token is of printable ASCII")
        if not token:
            return ()
        why = why_not_sent(
            "the target's token",
            self.address,
            secure=self._encrypted,
            allowed=self.plaintext_secrets,
        )
        if why:
            raise InvalidRequest(why)
        return (("authorization", f"Bearer {token}"),)

    @property
    def _encrypted(self) -> bool:
        return bool(self.tls or self.authorities or self.certificate or self.key)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """The credentials of a TLS connection; None: plaintext."""
        if not self._encrypted:
            return None
        if bool(self.certificate) is not bool(self.key):
            raise InvalidRequest("certificate and key are needed together")
        import grpc

        return grpc.ssl_channel_credentials(
            _file(self.authorities) if self.authorities else None,
            _file(self.key) if self.key else None,
            _file(self.certificate) if self.certificate else None,
        )


class PlayerSettings:
    """What a player was told, and may be told anew."""

    def __init__(self, name: str, log_name: str, dead_letters: str, takeover: timedelta) -> None:
        """Without targets yet."""
        self.name = name
        self.log_name = log_name
        self.dead_letters = dead_letters
        self.takeover_s = takeover.total_seconds()
        self.targets: Mapping[str, Target] = {}


def _file(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise InvalidRequest(str(error)) from error


def check_targets(targets: Sequence[Target], dead_letters: str) -> dict[str, Target]:
    """Return targets by their names.

    Raises ``InvalidRequest`` for anything but a list of targets, if two have one name, and if one
    follows the stream of its own dead letters: these would become dead letters, without end.
    """
    if isinstance(targets, Target):
        raise InvalidRequest(f"targets are a list: [target], not target {targets.name!r} itself")
    if not isinstance(targets, Collection) or not all(isinstance(each, Target) for each in targets):
        raise InvalidRequest(f"targets are a list of sharedlog.Target, not {targets!r:.100}")
    found = {each.name: each for each in targets}
    if len(found) < len(targets):
        twice = sorted(name for name in found if [t.name for t in targets].count(name) > 1)
        raise InvalidRequest(f"two targets are named {twice[0]!r}")
    for each in targets:
        if dead_letters in each.methods:
            raise InvalidRequest(
                f"target {each.name!r} follows {dead_letters!r}, the stream of this player's dead "
                "letters: another player, whose dead_letters are another stream, may play it"
            )
    return found
