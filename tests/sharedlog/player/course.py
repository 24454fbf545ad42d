"""A player, its targets and their connections, small enough to be drawn at random.

As chaos/model/player.pml has them: what is sent on a connection arrives in order, a suffix may be
lost, and a connection that was given up may be served for a while longer beside the next one.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from sharedlog._core.player.feeder import Feeder, FeederBounds, FeederState
from sharedlog._core.player.feeding import Feeding
from sharedlog._core.player.item import Item, Outgoing
from sharedlog._core.player.trouble import Cause, Trouble
from sharedlog._core.position import Position
from sharedlog._core.target_delivery import DeliveryKind

TAGS = ("s/0", "s/1")
BOUNDS = FeederBounds(queue_count=4, window_count=3, batch_count=2)


def position(lsn: int, tag: str, ordinal: int = 0) -> Position:
    """A message's place."""
    return Position(lsn, ordinal, 1000 + lsn, "f00d", int(tag[-1]))


def before(place: Position | None) -> int:
    """Through which LSN all is taken: a commit may have been taken in part."""
    return 0 if place is None else place.lsn - 1


class Log:
    """Commits, one an LSN: of each the messages, by substream."""

    def __init__(self, draw: random.Random, commits: int) -> None:
        self.commits: list[list[Item]] = [[]]
        for lsn in range(1, commits + 1):
            found = []
            for tag in TAGS:
                count = draw.choice((0, 0, 1, 1, 1, 2))
                found += [
                    Item(tag, position(lsn, tag, at), b"m", lsn, at < count - 1)
                    for at in range(count)
                ]
            self.commits.append(found)

    @property
    def tail(self) -> int:
        """The newest commit."""
        return len(self.commits) - 1

    def between(self, after: int, through: int) -> list[Item]:
        """The messages of some commits."""
        return [each for found in self.commits[after + 1 : through + 1] for each in found]

    def behind(self, tag: str, place: Position | None) -> list[Item]:
        """What a substream has behind a place."""
        return [
            each for each in self.between(0, self.tail) if each.tag == tag and each.behind(place)
        ]


class Target:
    """The index of a target, and what its handlers have run with."""

    def __init__(self, log: Log, *, conditional: bool = True) -> None:
        self._log = log
        self._conditional = conditional
        self.index: dict[str, Position | None] = dict.fromkeys(TAGS)
        self.ran: dict[str, list[Position]] = {tag: [] for tag in TAGS}

    def judge(self, sent: Outgoing) -> str:
        """Say whether a delivery is to run: what follows the index does."""
        index = self.index[sent.item.tag]
        if not sent.item.behind(index):
            return "done"
        return "run" if sent.follows == index else "gap"

    def commit(self, sent: Outgoing) -> str:
        """Commit what ran, if it still follows: in order, once, and all of them (P1)."""
        judged = self.judge(sent) if self._conditional else "run"
        if judged != "run":
            return judged
        tag, place = sent.item.tag, sent.item.place
        rest = self._log.behind(tag, self.index[tag])
        if sent.kind is DeliveryKind.EMPTY:
            assert sent.item.behind(self.index[tag])
            assert all(each.behind(place) for each in rest)
        else:
            assert rest, (tag, place, self.index[tag])
            assert place == rest[0].place, (tag, place, self.index[tag])
            self.ran[tag].append(place)
        self.index[tag] = place
        return "done"


class Connection:
    """What travels on one connection."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.there: deque[Outgoing] = deque()
        self.carried: Outgoing | None = None
        # By substream, what failed: nothing behind it is taken until it comes again.
        self.dropped: dict[str, Position] = {}


class Course:
    """One player and one target of it; what happens next is drawn by whoever calls."""

    def __init__(self, log: Log, target: Target, feeder: Feeding, player: Player) -> None:
        self.log = log
        self.target = target
        self.feeder = feeder
        self.player = player
        self.connections: deque[Connection] = deque(maxlen=2)
        self.answers: deque[tuple[int, str, Outgoing]] = deque()
        self.asked: dict[str, Position | None] = {}
        self.read = 0
        self.last: dict[str, Position | None] = {}
        self.others = False
        # How far each substream was read that goes on by itself.
        self.reads: dict[str, int] = {}
        self.starts: dict[str, Position | None] = {}
        self.mine: set[str] = set()

    # What may happen, as the model has it.

    def connect(self) -> bool:
        """From S: it is asked for its index, which may be older than what happens then."""
        if self.feeder.state is not FeederState.S:
            return False
        term = self.feeder.connect()
        self.asked = dict(self.target.index)
        self.connections.append(Connection(term))
        return True

    def begin(self) -> bool:
        """Its answer comes."""
        if self.feeder.state is not FeederState.ASKED:
            return False
        self.feeder.begin(self.feeder.term, self.asked)
        self.last = dict(self.asked)
        self.mine = set(TAGS) - self.feeder.aside.keys()
        self.read = min(before(each) for each in self.asked.values())
        return True

    def fetch(self) -> bool:
        """The recovery stream reads a commit, or that there is none."""
        main = self.feeder.main
        if not main.wants():
            return False
        through = min(self.read + 1, self.log.tail)
        found = [
            each
            for each in self.log.between(self.read, through)
            if each.tag in self.mine and each.behind(self.asked[each.tag])
        ]
        main.fetch(main.term, found, through)
        self.read = through
        self.fix()
        return True

    def go_on(self) -> bool:
        """A substream whose message failed goes on by itself; or what it missed is read."""
        due = self.feeder.due(0.0)
        for tag in due:
            _, at = self.feeder.open(tag)
            self.reads[tag], self.starts[tag] = before(at), at
        for tag, each in list(self.feeder.aside.items()):
            one = each.feeder
            if one.wants():
                through = min(self.reads[tag] + 1, self.log.tail)
                found = self.log.between(self.reads[tag], through)
                at = self.starts[tag]
                mine = [item for item in found if item.tag == tag and item.behind(at)]
                one.fetch(one.term, mine, through)
                self.reads[tag] = through
                self.fix()
                return True
        return bool(due)

    def fix(self) -> None:
        """Under the dispatch lock."""
        self.feeder.fix(self.player.dispatched)

    def send(self) -> bool:
        """A batch goes out; each follows the one before it (P4)."""
        found = self.feeder.take(0.0)
        for each in found:
            tag = each.item.tag
            assert each.follows == self.last[tag], (each, self.last[tag])
            rest = self.log.behind(tag, self.last[tag])
            if each.kind is DeliveryKind.EMPTY:
                assert all(item.behind(each.item.place) for item in rest)
            else:
                assert each.item.place == rest[0].place, (each, rest[0])
            self.last[tag] = each.item.place
            self.connections[-1].there.append(each)
        return bool(found)

    def serve(self, which: int, *, fails: bool = False) -> bool:
        """A delivery arrives; or what runs is committed, or has failed, and is answered."""
        if which >= len(self.connections):
            return False
        connection = self.connections[which]
        if connection.carried is None:
            if not connection.there:
                return False
            sent = connection.there.popleft()
            answer = self.target.judge(sent)
            tag = sent.item.tag
            if tag in connection.dropped and sent.item.behind(connection.dropped[tag]):
                return True
            connection.dropped.pop(tag, None)
            if answer == "run":
                connection.carried = sent
                return True
        else:
            sent, connection.carried = connection.carried, None
            failed = fails and sent.kind is DeliveryKind.MESSAGE
            answer = "failed" if failed else self.target.commit(sent)
        if answer == "failed":
            connection.dropped[sent.item.tag] = sent.item.place
        elif answer != "done":
            connection.there.clear()
        self.answers.append((connection.term, answer, sent))
        return True

    def hear(self) -> bool:
        """An answer arrives."""
        if not self.answers:
            return False
        term, answer, sent = self.answers.popleft()
        tag, place = sent.item.tag, sent.item.place
        if answer == "done":
            self.feeder.taken(term, tag, place, 0.0)
        elif answer == "failed":
            trouble = Trouble(Cause.FAILED, tag, place)
            if self.feeder.hold_up(term, trouble, 0.0):
                self.last[tag] = sent.follows
            else:
                self.feeder.troubled(term, trouble)
        elif self.feeder.troubled(term, Trouble(Cause.GAP, tag, place)):
            # Another player, or an older connection, moved its index meanwhile.
            assert self.others or len(self.connections) == 2
        for tag, acknowledged in self.feeder.acknowledged.items():
            index = self.target.index[tag]
            assert index is not None
            assert acknowledged[:2] <= index[:2]
        return True

    def die(self, which: int) -> bool:
        """The target dies with what it carries; what it was sent is lost."""
        if which >= len(self.connections):
            return False
        connection = self.connections[which]
        connection.carried = None
        connection.there.clear()
        if connection.term == self.feeder.term:
            self.feeder.cut(Trouble(Cause.BROKEN))
        return True

    def give_up(self) -> bool:
        """It waited long enough; the target does not know yet."""
        if self.feeder.state is FeederState.S:
            return False
        self.feeder.cut(Trouble(Cause.LATE))
        return True


def fed_by(feeder: Any) -> Feeding:
    """What feeds a target, made of feeders of a kind; or of a kind of its own."""
    if issubclass(feeder, Feeding):
        return feeder(BOUNDS)  # type: ignore[no-any-return]
    found = Feeding(BOUNDS)
    found.main = feeder(BOUNDS)
    return found


class Player:
    """The main stream of one player, and its targets."""

    def __init__(self, log: Log, targets: list[Target], feeder: Any = Feeder) -> None:
        self.log = log
        self.dispatched: int | None = None
        self.courses = [Course(log, each, fed_by(feeder), self) for each in targets]

    def start(self) -> bool:
        """It begins, or begins anew, at the lowest index."""
        for each in self.courses:
            each.feeder.cut(Trouble(Cause.RESTARTED))
        indexes = [each.target.index[tag] for each in self.courses for tag in TAGS]
        self.dispatched = min(before(each) for each in indexes)
        return True

    def dispatch(self) -> bool:
        """The main stream goes on by a commit: one step for all targets."""
        if self.dispatched is None or self.dispatched == self.log.tail:
            return False
        self.dispatched += 1
        for each in self.courses:
            each.feeder.dispatch(self.log.commits[self.dispatched])
            each.fix()
        return True

    def move_on(self) -> bool:
        """Targets that had nothing to do are moved forward."""
        if not self.dispatched:
            return False
        for each in self.courses:
            lsn = self.dispatched
            busy = {item.tag for item in self.log.commits[lsn]}
            each.feeder.move_on({tag: position(lsn, tag) for tag in TAGS if tag not in busy})
        return True


def run(
    seed: int,
    *,
    players: int = 1,
    targets: int = 2,
    steps: int = 250,
    feeder: Any = Feeder,
    conditional: bool = True,
) -> None:
    """Draw what happens for a while, then have all be well: everything is delivered once."""
    draw = random.Random(seed)
    log = Log(draw, draw.randrange(4, 16))
    ends = [Target(log, conditional=conditional) for _ in range(targets)]
    made = [Player(log, ends, feeder) for _ in range(players)]
    courses = [each for player in made for each in player.courses]
    for each in courses:
        each.others = players > 1
    faults = [0.0, 0.02, 0.1][seed % 3]
    hung = courses[0] if targets > 1 and seed % 5 == 0 else None
    for step in range(steps + 1):
        player, course = draw.choice(made), draw.choice(courses)
        if draw.random() < faults:
            _fault(draw, player, course)
        elif course is hung and draw.random() < 0.9:
            course.send()
        else:
            _step(draw, player, course, failing=seed % 4 > 0)
        if step == steps // 2 and players > 1:
            made[0].start()
    for _ in range(10_000):
        busy = [_quiet(each) for each in made] + [_quiet_course(each) for each in courses]
        if not any(busy):
            break
    else:
        raise AssertionError("it never ends")
    for end in ends:
        for tag in TAGS:
            assert end.ran[tag] == [each.place for each in log.behind(tag, None)], (tag, end.ran)
    for course in courses:
        assert course.feeder.state is FeederState.N
        assert (course.feeder.in_flight, course.feeder.queued) == (0, 0)
        course.feeder.take(0.0)
        assert not course.feeder.aside


def _step(draw: random.Random, player: Player, course: Course, *, failing: bool) -> None:
    if player.dispatched is None:
        player.start()
        return
    doing = draw.choice(
        (
            *(player.dispatch, player.dispatch, player.move_on),
            *(course.connect, course.begin, course.fetch, course.fetch, course.send, course.send),
            *(lambda: course.serve(0), lambda: course.serve(1), lambda: course.serve(1)),
            *(course.go_on, course.go_on, lambda: course.serve(draw.randrange(2), fails=failing)),
            *(course.hear, course.hear),
        )
    )
    doing()


def _fault(draw: random.Random, player: Player, course: Course) -> None:
    draw.choice(
        (lambda: course.die(0), lambda: course.die(1), course.give_up, course.give_up, player.start)
    )()


def _quiet(player: Player) -> bool:
    if player.dispatched is None:
        return player.start()
    return player.dispatch()


def _quiet_course(course: Course) -> bool:
    doing = (course.connect, course.begin, course.fetch, course.go_on, course.send)
    served = (lambda: course.serve(0), lambda: course.serve(1), course.hear)
    return sum(each() for each in (*doing, *served)) > 0
