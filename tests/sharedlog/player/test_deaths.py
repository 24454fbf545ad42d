"""Messages that kill their process are found by halves (DESIGN-LOG §15, P7)."""

import json
import math
import random
from collections import Counter

import pytest

from sharedlog._core.player.deaths import Death, Deaths
from sharedlog._core.player.failing import Failing, FailurePolicy, Skipped, Then
from sharedlog._core.player.feeder import FeederBounds
from sharedlog._core.player.feeding import Feeding
from sharedlog._core.player.item import Item
from sharedlog._core.player.trouble import Cause, Trouble
from sharedlog._core.target_delivery import DeliveryKind
from tests.sharedlog.player.course import position

TAG = "s/0"


def item(lsn, tag=TAG):
    return Item(tag, position(lsn, tag), b"m", lsn)


class World:
    """A player and a target whose process some messages kill.

    ``late``: how many processes later it is known that one has ended. ``both``: the player dies
    with its target. ``killers``: places by tag.
    """

    def __init__(self, draw, messages, killers, *, tries, window, late=0, both=False):
        self.draw = draw
        self.messages = messages
        self.killers = killers
        self.bounds = FeederBounds(window_count=window)
        self.rules = FailurePolicy(tries, Then.DEAD_LETTER)
        self.late = late
        self.both = both
        self.indexes = dict.fromkeys({each.tag for each in messages})
        self.deaths = 0
        self.ran = Counter()
        self.skipped = []
        self.feeding, self.failing = Feeding(self.bounds), Failing(self.rules)

    def run(self):
        while any(each.behind(self.indexes[each.tag]) for each in self.messages):
            self.connect()
            assert self.deaths < 500

    def beats(self):
        asked = self.feeding.deaths.asked
        return {each: 0 if int(each) + self.late < self.deaths else 1 for each in asked}

    def connect(self):
        """One connection, to its end."""
        feeding, deaths = self.feeding, self.feeding.deaths
        term = feeding.connect()
        for died in deaths.connected(str(self.deaths), self.beats(), self.indexes, {}):
            if died.alone is None:
                continue
            verdict = self.failing.judge(Trouble(Cause.DIED, *died.alone, alone=True))
            if isinstance(verdict, Skipped):
                feeding.decide(verdict.tag, verdict.place, verdict.skip)
        self.kept = json.loads(json.dumps(deaths.kept()))
        self.counted = dict(self.failing.attempts)
        if deaths.holds(self.failing.attempts, self.rules.tries):
            # Until it is known, which it is a while later.
            self.late = 0
            feeding.cut(Trouble(Cause.BROKEN))
            return
        failed = dict.fromkeys((*self.failing.attempts, *deaths.killers))
        assert feeding.begin(term, self.indexes, failed=failed)
        tail = self.messages[-1].place.lsn
        feeding.main.fetch(term, [each for each in self.messages if each.tag not in failed], tail)
        feeding.fix(tail)
        while any(each.behind(self.indexes[each.tag]) for each in self.messages):
            for tag in feeding.due(1e9):
                one, _ = feeding.open(tag)
                one.fetch(one.term, [each for each in self.messages if each.tag == tag], tail)
                one.fix(tail)
            flight = []
            while found := feeding.take(0.0):
                flight += found
            if deaths.careful:
                self.kept = json.loads(json.dumps(deaths.kept()))
            if self.serve(term, flight):
                return

    def serve(self, term, flight):
        """Have the target take what it was sent; whether its process died."""
        lanes = {}
        for each in flight:
            lanes.setdefault(each.item.tag, []).append(each)
        begun = dict(self.indexes)
        while lanes:
            tag = self.draw.choice(sorted(lanes))
            sent = lanes[tag].pop(0)
            if not lanes[tag]:
                del lanes[tag]
            place = sent.item.place
            assert sent.follows == self.indexes[tag]
            if sent.kind is DeliveryKind.SKIP:
                self.skipped.append((tag, place.lsn))
            else:
                self.ran[tag, place.lsn] += 1
                if place.lsn in self.killers.get(tag, ()):
                    self.die(begun)
                    return True
            self.indexes[tag] = place
        for tag, place in self.indexes.items():
            if place is not None:
                self.feeding.taken(term, tag, place, 0.0)
                self.failing.done(tag, place)
        return False

    def die(self, begun):
        """Of what ran of a substream all stands, or nothing."""
        self.deaths += 1
        for tag, place in begun.items():
            self.indexes[tag] = self.draw.choice((self.indexes[tag], place))
        self.feeding.cut(Trouble(Cause.BROKEN))
        if self.both:
            self.feeding = Feeding(self.bounds, self.kept)
            self.failing = Failing(self.rules, self.counted)


@pytest.mark.parametrize("both", [False, True], ids=["target", "both"])
@pytest.mark.parametrize("late", [0, 3], ids=["known", "known late"])
@pytest.mark.parametrize("killers", [1, 3])
def test_a_killer_is_found_by_halves(killers, late, both):
    """In as many deaths as the docs say, and what is beside it runs no more often than they say."""
    for seed in range(25):
        draw = random.Random(seed)
        tags = [f"s/{number}" for number in range(draw.choice((1, 3)))]
        messages = [item(lsn, draw.choice(tags)) for lsn in range(1, draw.choice((21, 80)))]
        found = draw.sample(messages, killers)
        kills = {}
        for each in found:
            kills.setdefault(each.tag, set()).add(each.place.lsn)
        tries, window = draw.choice((1, 3)), draw.choice((4, 20, 64))
        world = World(draw, messages, kills, tries=tries, window=window, late=late, both=both)
        world.run()
        assert sorted(world.skipped) == sorted((each.tag, each.place.lsn) for each in found), seed
        # A player that died with its target knows of the window alone.
        halves = int(math.log2(window if both else min(window, len(messages))))
        assert world.deaths <= killers * (halves + tries), (seed, world.deaths)
        assert set(world.ran) == {(each.tag, each.place.lsn) for each in messages}
        killed = {(each.tag, each.place.lsn) for each in found}
        innocent = [count for at, count in world.ran.items() if at not in killed]
        assert max(innocent, default=0) <= killers * halves + 1, (seed, world.ran)


def flying(*lsns, window=20, kept=None):
    """Deaths of a target whose process ``a`` was sent these."""
    deaths = Deaths(window, kept)
    assert deaths.connected("a", {}, {TAG: None}, {}) == []
    for lsn in lsns:
        deaths.sent(item(lsn))
    return deaths


def test_a_death_is_proved():
    """By another process that knows that it has ended; a lost connection is none."""
    deaths = flying(1, 2, 3, 4)
    assert (deaths.asked, deaths.limit) == (["a"], 0)
    # The same process answers.
    assert deaths.connected("a", {"a": 1}, {TAG: None}, {}) == []
    assert deaths.limit == 0
    for lsn in range(1, 5):
        deaths.sent(item(lsn))
    # Another one does, which does not know: as long as nobody knows, it is sent half as many.
    assert deaths.connected("b", {"a": 7}, {TAG: None}, {}) == []
    assert (deaths.asked, deaths.limit, deaths.room) == (["a", "b"], 2, 2)
    # It lives: its beats go on.
    assert deaths.connected("b", {"a": 8, "b": 1}, {TAG: None}, {}) == []
    assert (deaths.asked, deaths.limit, deaths.room) == (["b"], 0, None)
    for lsn in range(1, 5):
        deaths.sent(item(lsn))
    assert deaths.connected("c", {"b": 0}, {TAG: None}, {}) == [Death("b", 4, None)]
    assert deaths.limit == 2


def test_the_limit_is_lifted_behind_what_was_in_flight():
    """As many may be in flight again once the index has passed all of it (P7)."""
    deaths = flying(1, 2, 3, 4)
    deaths.connected("b", {"a": 0}, {TAG: position(1, TAG)}, {})
    assert deaths.limit == 1
    deaths.taken(TAG, position(3, TAG))
    assert deaths.limit == 1
    deaths.taken(TAG, position(4, TAG))
    assert (deaths.limit, deaths.careful) == (0, False)


def test_what_was_taken_before_its_process_ended_has_not_killed_it():
    """The index says so: nothing is limited (P7)."""
    deaths = flying(1, 2)
    assert deaths.connected("b", {"a": 0}, {TAG: position(2, TAG)}, {}) == []
    assert deaths.limit == 0


def test_what_hangs_has_killed_nobody_unless_nothing_else_ran():
    """A handler that ran before the connection is suspected last (P7)."""
    deaths = flying(1)
    hangs = {"s/1": position(9, "s/1")}
    deaths.connected("a", {"a": 1}, {TAG: None, "s/1": None}, hangs)
    deaths.sent(item(2))
    died = deaths.connected("b", {"a": 0}, {TAG: None, "s/1": None}, {})
    assert died == [Death("a", 1, (TAG, position(2, TAG)))]
    deaths.connected("b", {"b": 1}, {TAG: position(2, TAG), "s/1": None}, hangs)
    died = deaths.connected("c", {"b": 0}, {TAG: position(2, TAG), "s/1": None}, {})
    assert died == [Death("b", 1, ("s/1", position(9, "s/1")))]


def test_what_was_answered_does_not_run():
    """A message that failed has not killed the process that said so; those before it may have."""
    deaths = flying(1, 2, 3)
    deaths.answered(TAG, position(2, TAG))
    assert deaths.connected("b", {"a": 0}, {TAG: None}, {}) == [
        Death("a", 1, (TAG, position(1, TAG)))
    ]


def test_a_message_is_not_sent_again_before_it_is_known_whether_it_has_killed():
    """If it may have failed as often as it may: so its deaths stay within ``tries``."""
    deaths = flying(1)
    deaths.connected("b", {"a": 5}, {TAG: None}, {})
    assert deaths.holds({}, 1)
    assert not deaths.holds({}, 2)
    assert deaths.holds({TAG: (position(1, TAG), 1)}, 2)
    assert not deaths.holds({TAG: (position(9, TAG), 1)}, 2)
    assert not deaths.holds({TAG: (position(1, TAG), 9)}, None)


def test_a_target_that_cannot_tell_is_sent_as_many_as_ever():
    """Without a process's name no death is proved (P7)."""
    deaths = Deaths(20)
    for _ in range(3):
        assert deaths.connected("", {}, {TAG: None}, {}) == []
        deaths.sent(item(1))
    assert (deaths.asked, deaths.limit, deaths.careful) == ([], 0, False)
