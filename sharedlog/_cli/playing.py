"""The commands of players: play, targets, pause, resume, skip, replay."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from _rifl_ground.exits import CommandRefused, ExitCode
from _rifl_ground.log import get_logger
from _rifl_ground.options import add_url
from _rifl_ground.signals import told_at, until_signal
from _rifl_ground.texts import one_line, print_table
from sharedlog._cli.operating import really
from sharedlog._cli.serving import observer_of
from sharedlog._cli.shown import print_json, told_time
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.following import Moment, find_starts
from sharedlog._core.observer import LogObserver
from sharedlog._core.player.deadletters import first_of, message_at
from sharedlog._core.player.headline import headline
from sharedlog._core.player.holding import hold_name
from sharedlog._core.player.observer import PlayerObserver
from sharedlog._core.player.rows import (
    Latest,
    Order,
    SkipOne,
    TargetState,
    Wish,
    all_players,
    all_told,
    wish,
    wishes,
)
from sharedlog._core.player.stores import adopt
from sharedlog._core.position import Position
from sharedlog._log.following import After
from sharedlog._log.log import Log
from sharedlog._log.opening import open_log
from sharedlog._log.place import Place
from sharedlog._player.config import read_config
from sharedlog._player.declared import PLAYER
from sharedlog._player.player import Player

_log = get_logger("sharedlog")
_LOOK_S = 0.5
# Of what is wrong, in a table.
_MOST_CHARS = 300
# Of a target that are not done: they are kept in one row of the log.
_MOST_SKIPS = 1_000


def add_play_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a player."""
    add_url(parser, "--log", about="the log's URL")
    parser.add_argument("--name", default=PLAYER, help="of several with one name, one sends")
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE.toml",
        help="its targets; read again when it changes, and at SIGHUP",
    )
    parser.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics over HTTP")
    parser.add_argument(
        "--status",
        metavar="[HOST:]PORT",
        help="serve a page of its targets over HTTP; default host: this machine alone",
    )


def play(arguments: argparse.Namespace) -> int:
    """Play until SIGTERM or SIGINT. Prints a line when it does."""
    config = _Config(arguments.config)
    targets, options = config.read()
    again = threading.Event()
    with contextlib.ExitStack() as ending:
        observer, metrics = observer_of(arguments.metrics, ending)
        log = ending.enter_context(_opened(arguments, observer))
        watching = () if observer is None else (_player_observer(),)
        player = Player(
            log, targets, name=arguments.name, observer=watching, status=arguments.status, **options
        )
        with until_signal() as stopped, told_at((signal.SIGHUP,), again.set), player:
            sys.stdout.write(f"{arguments.name} plays {_count(len(targets))}\n")
            if metrics is not None:
                sys.stdout.write(f"metrics {metrics}\n")
            if player.status_url is not None:
                sys.stdout.write(f"status {player.status_url}\n")
            sys.stdout.flush()
            while not stopped.wait(_LOOK_S):
                if again.is_set() or config.changed():
                    again.clear()
                    _reload(player, config, options)
                player.check()
    return ExitCode.DONE


def _opened(arguments: argparse.Namespace, observer: LogObserver | None) -> Log:
    url, timeout, seals = arguments.url, arguments.timeout, arguments.keys
    if seals is None:
        return open_log(url, timeout=timeout, observer=observer)
    return open_log(url, timeout=timeout, observer=observer, seal=seals.seal, unseal=seals.unseal)


def _count(targets: int) -> str:
    return "1 target" if targets == 1 else f"{targets} targets"


def _player_observer() -> PlayerObserver:
    from sharedlog.metrics import PrometheusPlayerObserver

    return PrometheusPlayerObserver()


class _Config:
    """The file of a player, and whether it is another one by now."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: Any = None

    def changed(self) -> bool:
        """Whether it is not as it was read."""
        return self._stamp() not in (None, self._seen)

    def read(self) -> Any:
        """Return what it says; raises ``CommandRefused``."""
        self._seen = self._stamp()
        try:
            return read_config(self._file.read_text())
        except (InvalidRequest, UnicodeDecodeError, OSError) as error:
            raise CommandRefused(f"{self._file}: {error}", ExitCode.USAGE) from error

    def _stamp(self) -> Any:
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _reload(player: Player, config: _Config, options: dict[str, Any]) -> None:
    try:
        targets, fresh = config.read()
        if fresh != options:
            raise CommandRefused("only targets change without a restart", ExitCode.USAGE)
        player.reload(targets)
    except (CommandRefused, InvalidRequest) as error:
        # It goes on as it was.
        _log.error("player_config_refused", error=str(error))
    else:
        _log.info("player_config_read", targets=len(targets))


def targets(log: Log, arguments: argparse.Namespace) -> int:
    """List the targets of players, as they were told last."""
    mine = arguments.player
    names = [mine] if mine else log._place.of_player("").run(all_players())
    found = []
    for name in names:
        place = log._place.of_player(name)
        told, wished = place.run(all_told(name)), place.run(wishes(name))
        for target in sorted(told.keys() | wished.keys()):
            found.append((name, target, told.get(target), wished.get(target, Wish())))
    if arguments.player and not found:
        raise CommandRefused(
            f"nothing is known of a player {arguments.player!r}", ExitCode.NOT_FOUND
        )
    if arguments.json:
        print_json([_target_object(*each) for each in found])
    else:
        columns = (
            "player",
            "target",
            "state",
            "index",
            "lag#",
            "rate#",
            "told",
            "led by",
            "what is wrong",
        )
        print_table("", columns, [_target_row(*each) for each in found])
    return ExitCode.DONE


def _target_object(
    player: str, target: str, told: TargetState | None, wished: Wish
) -> dict[str, Any]:
    paused, latest = wished.paused, wished.latest
    level, word, text = headline(told, wished, time.time_ns() // 1000)
    return {
        "player": player,
        "target": target,
        "headline": {"level": level.value, "word": word, "text": text},
        **({"state": None} if told is None else told._asdict()),
        "paused": None if paused is None else paused._asdict(),
        "latest": None if latest is None else {"what": latest.what} | latest.order._asdict(),
    }


def _target_row(
    player: str, target: str, told: TargetState | None, wished: Wish
) -> tuple[str, ...]:
    _, word, text = headline(told, wished, time.time_ns() // 1000)
    text = one_line(text, _MOST_CHARS)
    if told is None:
        return (player, target, word, *[""] * 5, text)
    places = [Position.parse(each) for each in told.indexes.values()]
    lowest = str(min(places, key=lambda each: each[:2])).partition("-")[0] if places else ""
    return (
        player,
        target,
        word,
        lowest + (f" #{told.number}" if told.number else ""),
        str(told.lag),
        f"{told.rate:g}",
        told_time(told.at_us),
        told.process,
        text,
    )


def pause(log: Log, arguments: argparse.Namespace) -> int:
    """Send a target nothing until it is resumed."""
    _told(log, arguments)
    order = _reasoned(arguments)
    return _wished(log, arguments, lambda known: known._replace(paused=order))


def resume(log: Log, arguments: argparse.Namespace) -> int:
    """Have a target go on that was paused, or that has stopped."""
    order = _order(arguments)
    if arguments.adopt:
        told = _told(log, arguments)
        if not told.store:
            raise CommandRefused(
                "no store has answered, so there is none to adopt", ExitCode.NOT_FOUND
            )
        order = _reasoned(arguments)
        place = log._place.of_player(arguments.player)
        place.run(adopt(arguments.player, arguments.target, told.number, told.store, order))
    return _wished(
        log, arguments, lambda known: known._replace(paused=None, resumed=known.resumed + 1)
    )


def skip(log: Log, arguments: argparse.Namespace) -> int:
    """Have a target not be called with one message: it becomes a dead letter."""
    told = _told(log, arguments)
    tag, position = told.about_tag, told.about
    if arguments.position is not None:
        position = str(arguments.position)
        tag = arguments.substream or tag
    elif not position and len(told.attempts) == 1:
        ((tag, (position, _)),) = told.attempts.items()
    if not tag or not position:
        raise CommandRefused(
            "the target has not stopped at a message: say which, by --position and --substream",
            ExitCode.USAGE,
        )
    order = SkipOne(tag, Position.parse(position), _reasoned(arguments), told.number)
    _check_skip(log, arguments, told, order)
    really(arguments, f"{arguments.target} is never called with {order.place} in {tag}; to skip it")

    def change(known: Wish) -> Wish:
        same = (order.tag, order.place[:2])
        waiting = tuple(
            each
            for each in known.skips
            if (each.tag, each.place[:2]) != same and not told.has_done(each)
        )
        if len(waiting) >= _MOST_SKIPS:
            raise CommandRefused(
                f"{len(waiting)} skips of {arguments.target} are not done yet: wait until its "
                "player has done some, or replay the target from after them",
                ExitCode.USAGE,
            )
        return known._replace(skips=(*waiting, order), resumed=known.resumed + 1)

    return _wished(log, arguments, change)


def _check_skip(log: Log, arguments: argparse.Namespace, told: TargetState, order: SkipOne) -> None:
    """Refuse what cannot be skipped: no message, of another stream, or taken."""
    tag, place = order.tag, order.place
    if told.has_done(order):
        raise CommandRefused(
            f"{arguments.target} has taken {tag} through {told.indexes[tag]}: {place} is behind it",
            ExitCode.USAGE,
        )
    follows = {
        each.tag for each in log.holds(hold_name(arguments.player, arguments.target, told.number))
    }
    if follows and tag not in follows:
        raise CommandRefused(
            f"{arguments.target} does not follow {tag}. It follows {', '.join(sorted(follows))}",
            ExitCode.USAGE,
        )
    if log._place.of_player(arguments.player).run(message_at(tag, place)) is None:
        raise CommandRefused(f"there is no message {place} in {tag}", ExitCode.NOT_FOUND)


def replay(log: Log, arguments: argparse.Namespace) -> int:
    """Have a target take a log anew, from a place on, into an index of another number."""
    told = _told(log, arguments)
    first = _first(log, log._place.of_player(arguments.player), arguments.after)
    really(arguments, f"{arguments.target} is called again with all from LSN {first} on; to replay")

    def change(known: Wish) -> Wish:
        number = 1 + max(known.number, told.number)
        return known._replace(number=number, first=first, resumed=known.resumed + 1)

    return _wished(log, arguments, change)


def _first(log: Log, place: Place, after: After) -> int:
    """Return the LSN from which on a target takes what is there."""
    if isinstance(after, Position):
        after.check_incarnation(log.incarnation)
        return place.run(first_of(after))
    if isinstance(after, datetime):
        if after.timestamp() > time.time():
            raise CommandRefused(f"{after} has not come yet", ExitCode.USAGE)
        start: Any = Moment(int(after.timestamp() * 1_000_000))
    else:
        start = after
    found = place.run(find_starts(["x/0"], log.incarnation, start))["x/0"]
    return found if isinstance(found, int) else found.lsn


def _told(log: Log, arguments: argparse.Namespace) -> TargetState:
    place = log._place.of_player(arguments.player)
    found = place.run(all_told(arguments.player)).get(arguments.target)
    if found is None:
        raise CommandRefused(
            f"player {arguments.player!r} has no target {arguments.target!r}",
            ExitCode.NOT_FOUND,
        )
    return found


def _wished(log: Log, arguments: argparse.Namespace, change: Callable[[Wish], Wish]) -> int:
    _told(log, arguments)
    place = log._place.of_player(arguments.player)
    order = _order(arguments)
    latest = Latest(arguments.ordered, order)
    made = place.run(
        wish(
            arguments.player,
            arguments.target,
            lambda known: change(known)._replace(latest=latest),
        )
    )
    _log.warning(
        "target_ordered",
        player=arguments.player,
        target=arguments.target,
        order=arguments.ordered,
        by=order.by,
        why=order.why,
    )
    if arguments.json:
        print_json({"target": arguments.target, "order": arguments.ordered, "number": made.number})
    else:
        sys.stdout.write(f"{arguments.target}: {arguments.ordered}\n")
    return ExitCode.DONE


def _reasoned(arguments: argparse.Namespace) -> Order:
    """Return it with its reason, which is kept; raises ``CommandRefused`` without one."""
    if not arguments.why:
        raise CommandRefused(f"say --why: it is kept with the {arguments.ordered}", ExitCode.USAGE)
    return _order(arguments)


def _order(arguments: argparse.Namespace) -> Order:
    return Order(arguments.by or getpass.getuser(), arguments.why, time.time_ns() // 1000)
