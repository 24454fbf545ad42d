"""``Player``: what calls gRPC servers with the messages of a log, each once, in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.log import get_logger
from _rifl_ground.loops import tell_loop
from sharedlog._core.arguments import check_time
from sharedlog._core.errors import (
    InvalidRequest,
    LogError,
    LogStopped,
    LogUnavailable,
    NoSuchStream,
)
from sharedlog._core.player.holding import streams_of
from sharedlog._core.player.observer import PlayerObserver
from sharedlog._core.player.rows import TargetState, all_told, check_part
from sharedlog._core.streams import check_name
from sharedlog._log.log import Log
from sharedlog._log.place import forked
from sharedlog._player.declared import PLAYER, STREAM, PlayerSettings, Target, check_targets
from sharedlog._player.overview import Overview
from sharedlog._player.status_page import StatusPage
from sharedlog._player.watching import PlayerWatchers

if TYPE_CHECKING:
    from sharedlog._player.leading import Leading

_log = get_logger("sharedlog")
TAKEOVER = timedelta(seconds=2)
_SHORTEST_TAKEOVER = timedelta(milliseconds=100)
_MOST_LOG_NAME = 200


class Player:
    """A player: it delivers a log's messages to targets, until it is closed. A context manager.

    Of several with one ``name``, in any processes, one leads; another takes over within
    ``takeover`` after that one ends. ``log_name``: the name under which targets keep their indexes
    of this log. Logs that feed one target need different names, else the second one's target stops
    as ``FORKED``. ``dead_letters``: the stream of dead letters. ``observer``: one or several, which
    are told what it does. ``status``: ``[HOST:]PORT`` of a read-only status page over HTTP; by
    default the host is this machine alone.

    It runs an event loop in a thread of its own; any thread can call its methods. It cannot be used
    in a forked child.
    """

    def __init__(
        self,
        log: Log,
        targets: Sequence[Target] = (),
        *,
        name: str = PLAYER,
        log_name: str = "log",
        dead_letters: str = STREAM,
        takeover: timedelta = TAKEOVER,
        observer: PlayerObserver | Sequence[PlayerObserver] = (),
        status: str | None = None,
    ) -> None:
        """It sends nothing before it is entered, or ``run``.

        Raises ``InvalidRequest`` for invalid arguments. For a log over gRPC the caller needs the
        rights to ``play`` this name, and to publish to ``dead_letters``.
        """
        check_part(name, "player")
        check_name(dead_letters)
        if not 0 < len(log_name) <= _MOST_LOG_NAME or not log_name.isprintable():
            raise InvalidRequest(f"{log_name[:100]!r} is no name of a log")
        check_time(takeover, "takeover")
        if takeover < _SHORTEST_TAKEOVER:
            raise InvalidRequest(
                f"a takeover within {takeover} is too short: {_SHORTEST_TAKEOVER} at least"
            )
        self._place = log._place.of_player(name)
        self._settings = PlayerSettings(name, log_name, dead_letters, takeover)
        self._settings.targets = check_targets(targets, dead_letters)
        observers = (observer,) if isinstance(observer, PlayerObserver) else observer
        self._watchers = PlayerWatchers(name, observers)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._leading: Leading | None = None
        self._status = status
        self._overview: Overview | None = None
        self._page: StatusPage | None = None
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        refuse_in_children(self, forked)

    @property
    def leads(self) -> bool:
        """Whether this one of its name leads, as far as it knows."""
        return self._leading is not None and self._leading.fence is not None

    @property
    def status_url(self) -> str | None:
        """The URL of its status page, while it has one."""
        return None if self._page is None else self._page.url

    def start(self) -> None:
        """Begin, in a thread; once.

        Raises ``InvalidRequest`` for missing files or streams, ``LogStopped`` if the log is closed.
        """
        if self._thread is not None:
            raise InvalidRequest("a player begins once")
        self._check(self._settings.targets)
        if self._status is not None:
            self._overview = Overview(self._place, self._settings.name, lambda: self.leads)
            self._page = StatusPage(self._status, self._overview.shown)
            self._overview.start()
        self._thread = threading.Thread(target=self._run, name="sharedlog-player", daemon=True)
        self._thread.start()
        self._begun.wait()

    def run(self) -> None:
        """Deliver until another thread closes it, or an exception interrupts, such as a signal's.

        Raises as ``start`` and ``check``.
        """
        with self:
            self._ended.wait()
        self.check()

    def reload(self, targets: Sequence[Target]) -> None:
        """Deliver to these targets from now on; unchanged ones go on undisturbed."""
        found = check_targets(targets, self._settings.dead_letters)
        self._check(found)
        self._settings.targets = found

    def _check(self, targets: Mapping[str, Target]) -> None:
        """Raise ``InvalidRequest`` for files and streams that are not there: nothing changes."""
        for name, each in targets.items():
            try:
                each.metadata()
                each.credentials()
                self._place.run(streams_of(each.methods))
            except LogStopped:
                # This handle is never used again.
                raise
            except LogUnavailable:
                # It begins when the log is there.
                continue
            except (InvalidRequest, NoSuchStream) as error:
                raise InvalidRequest(f"target {name!r}: {error}") from error

    def targets(self) -> dict[str, TargetState]:
        """Return the states of the targets, by name, as the leading player wrote them last."""
        return self._place.run(all_told(self._settings.name))

    def check(self) -> None:
        """Raise the error that ended it, if something other than ``close`` did.

        ``LogStopped``: the log was closed, or cannot be used any more (a failed disk, a replaced
        file). A new player, over the log opened again, goes on where this one was.
        """
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop, after the work in progress; another one takes over at once. Idempotent."""
        loop, closing = self._loop, self._closing
        if loop is not None and closing is not None and not self._ended.is_set():
            tell_loop(loop, closing.set)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for each in (self._page, self._overview):
            if each is not None:
                each.close()
        self._page = self._overview = None

    def __enter__(self) -> Player:
        """Begin."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._lead())
        except BaseException as error:  # noqa: BLE001 - told by ``run``
            self._error = error
            _log.exception("player_failed", log=self._place.name, player=self._settings.name)
        finally:
            self._begun.set()
            self._ended.set()

    async def _lead(self) -> None:
        # gRPC is imported where it is used.
        from sharedlog._player.leading import Leading
        from sharedlog._player.outside import real

        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._leading = leading = Leading(
            self._place, self._settings, self._watchers, real(self._place)
        )
        self._begun.set()
        self._watchers.attached(leading.report)
        try:
            await leading.run(self._closing)
        except LogError as error:
            self._error = error
            name = self._settings.name
            _log.error("player_stopped", log=self._place.name, player=name, error=str(error))
        finally:
            self._watchers.detached(leading.report)
