"""Events of NEXMark's auctions: people, what they sell, and bids, made of a seed.

Each column of an event is drawn by its number: so any part of the events is the same, however they
are cut into parts. Proportions and shapes are those of NEXMark's generator, as Apache Beam and
nexmark-flink have it, under its names: of 50 events one is a person, three are auctions, and 46
are bids; half of the bids are on the newest hundredth auction, and most sellers and bidders are a
few hot ones; ids lead, so that some bids are on auctions, and of people, that come later; times are
whole milliseconds. ``extra`` brings an event to so many bytes on average, of which a bid's channel
and url do not count: 200 a person, 500 an auction, 100 a bid.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from benchmarks.nexmark.schemas import SCHEMAS

__all__ = ["CLOSING_HOURS", "Events"]

# Of 50 events in a row, the first is a person, and so many are auctions.
_ROUND, _AUCTIONS = 50, 3
_FIRST_ID = 1000
# An auction is open while about so many others begin; newest people and auctions are drawn from,
# and so many that come later.
_IN_FLIGHT, _ACTIVE = 100, 1000
_LEAD = 10
_HOT = 100
_CHANNELS_NUMBER = 10_000
# Events behind the last one, an hour each: no watermark holds back what is before them. A chain
# of queries needs one for each, and one more.
CLOSING_HOURS = (1, 2, 3)
_HOUR_US = 3_600_000_000
_STATES = pyarrow.array(("AZ", "CA", "ID", "OR", "WA", "WY"))
_CITIES = pyarrow.array(
    (
        "Phoenix",
        "Los Angeles",
        "San Francisco",
        "Boise",
        "Portland",
        "Bend",
        "Redmond",
        "Seattle",
        "Kent",
        "Cheyenne",
    )
)
_FIRST = pyarrow.array(
    ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
)
_LAST = pyarrow.array(
    ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
)
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


class Events(NamedTuple):
    """What is drawn by a seed; ``rate``: events a second of event time, from ``begin_us`` on."""

    seed: int = 1
    rate: int = 1000
    begin_us: int = 1_760_000_000_000_000

    @property
    def longest_us(self) -> int:
        """How long an auction is open at most."""
        return 1000 * (2 * _horizon_ms(self.rate) + 1)

    def time_us(self, numbers: numpy.ndarray) -> numpy.ndarray:
        """Return when events are: in whole milliseconds, so that some are at one time."""
        return self.begin_us + numbers * 1000 // self.rate * 1000

    def at_us(self, number: int) -> int:
        """Return when an event is."""
        return int(self.time_us(numpy.array([number]))[0])

    def tables(self, first: int, count: int) -> dict[str, pyarrow.Table]:
        """Return the people, auctions and bids among so many events from one on."""
        numbers = numpy.arange(first, first + count, dtype=numpy.int64)
        at = numbers % _ROUND
        return {
            "persons": self._persons(numbers[at == 0]),
            "auctions": self._auctions(numbers[(at > 0) & (at <= _AUCTIONS)]),
            "bids": self._bids(numbers[at > _AUCTIONS]),
        }

    def end_us(self, count: int) -> int:
        """Return when all of so many events are over, and their auctions closed."""
        return self.at_us(count) + self.longest_us

    def closed_us(self, count: int) -> int:
        """Return a time behind all windows of so many events, and before what closes them."""
        return self.end_us(count) + _HOUR_US // 2

    def closing(self, count: int) -> dict[str, pyarrow.Table]:
        """Return what ends so many events: a person, an auction and a bid for each hour behind.

        None of them is in an answer, whose rows are all before.
        """
        at = numpy.array(CLOSING_HOURS, dtype=numpy.int64)
        times = self.end_us(count) + at * _HOUR_US
        people, sold = _FIRST_ID + count + at, _FIRST_ID + count + at
        nothing = pyarrow.array([""] * len(at))
        persons = (people, nothing, nothing, nothing, nothing, nothing, times, nothing)
        auctions = (sold, nothing, nothing, at, at, times, times + 1000, people, 0 * at, nothing)
        bids = (sold, people, at, nothing, nothing, times + 1000, nothing)
        return {
            "persons": _table("persons", persons),
            "auctions": _table("auctions", auctions),
            "bids": _table("bids", bids),
        }

    def _persons(self, numbers: numpy.ndarray) -> pyarrow.Table:
        names = _joined(" ", self._of(_FIRST, numbers, 1), self._of(_LAST, numbers, 2))
        mail = _joined("@", self._of(_MAILBOXES, numbers, 7), self._of(_HOSTS, numbers, 8))
        fours = (self._of(_FOUR_DIGITS, numbers, salt) for salt in (9, 10, 11, 12))
        return _table(
            "persons",
            (
                _FIRST_ID + numbers // _ROUND,
                names,
                mail,
                _joined(" ", *fours),
                self._of(_CITIES, numbers, 4),
                self._of(_STATES, numbers, 5),
                self.time_us(numbers),
                self._of(_EXTRA["persons"], numbers, 6),
            ),
        )

    def _auctions(self, numbers: numpy.ndarray) -> pyarrow.Table:
        times = self.time_us(numbers)
        newest = numbers // _ROUND
        hot = newest // _HOT * _HOT
        seller = numpy.where(self._below(4, numbers, 1) > 0, hot, self._person(numbers, 2))
        price, more = self._price(numbers, 3), self._price(numbers, 4)
        length = 1000 * (1 + self._below(2 * _horizon_ms(self.rate), numbers, 5))
        return _table(
            "auctions",
            (
                _FIRST_ID + newest * _AUCTIONS + numbers % _ROUND - 1,
                self._of(_ITEMS, numbers, 6),
                self._of(_DESCRIPTIONS, numbers, 7),
                price,
                price + more,
                times,
                times + length,
                _FIRST_ID + seller,
                10 + self._below(5, numbers, 8),
                self._of(_EXTRA["auctions"], numbers, 9),
            ),
        )

    def _bids(self, numbers: numpy.ndarray) -> pyarrow.Table:
        people = numbers // _ROUND
        newest = people * _AUCTIONS + _AUCTIONS - 1
        least = numpy.maximum(newest - _IN_FLIGHT, 0)
        auction = numpy.where(
            self._below(2, numbers, 1) > 0,
            newest // _HOT * _HOT,
            least + self._below(newest - least + 1 + _LEAD, numbers, 2),
        )
        # The second of a hundred, so that hot bidders are not hot sellers.
        bidder = numpy.where(
            self._below(4, numbers, 3) > 0,
            people // _HOT * _HOT + 1,
            self._person(numbers, 4),
        )
        # A hot channel, or one of all.
        channel = numpy.where(
            self._below(2, numbers, 6) > 0,
            _CHANNELS_NUMBER + self._below(len(_HOT_CHANNELS), numbers, 8),
            self._below(_CHANNELS_NUMBER, numbers, 9),
        )
        channels, urls = _channels()
        return _table(
            "bids",
            (
                _FIRST_ID + auction,
                _FIRST_ID + bidder,
                self._price(numbers, 5),
                channels.take(pyarrow.array(channel)),
                urls.take(pyarrow.array(channel)),
                self.time_us(numbers),
                self._of(_EXTRA["bids"], numbers, 7),
            ),
        )

    def _person(self, numbers: numpy.ndarray, salt: int) -> numpy.ndarray:
        """Return one of the newest people, or of those that come next."""
        there = numbers // _ROUND + 1
        active = numpy.minimum(there, _ACTIVE)
        found: numpy.ndarray = there - active + self._below(active + _LEAD, numbers, salt)
        return found

    def _price(self, numbers: numpy.ndarray, salt: int) -> numpy.ndarray:
        part = self._draw(numbers, salt) / numpy.float64(2**64)
        found: numpy.ndarray = numpy.rint(100 * 10 ** (6 * part)).astype(numpy.int64)
        return found

    def _of(self, words: pyarrow.Array, numbers: numpy.ndarray, salt: int) -> pyarrow.Array:
        return words.take(pyarrow.array(self._below(len(words), numbers, salt)))

    def _below(self, end: int | numpy.ndarray, numbers: numpy.ndarray, salt: int) -> numpy.ndarray:
        ends = numpy.asarray(end).astype(numpy.uint64)
        drawn: numpy.ndarray = (self._draw(numbers, salt) % ends).astype(numpy.int64)
        return drawn

    def _draw(self, numbers: numpy.ndarray, salt: int) -> numpy.ndarray:
        """Return 64 bits for each number: SplitMix64 of it, the column's salt and the seed."""
        start = (self.seed * 0x9E3779B97F4A7C15 + salt * 0xD1B54A32D192ED03) % 2**64
        with numpy.errstate(over="ignore"):
            drawn = numbers.astype(numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
            drawn = _mixed(drawn + numpy.uint64(start))
            return _mixed(drawn + numpy.uint64(0x9E3779B97F4A7C15))


def _mixed(bits: numpy.ndarray) -> numpy.ndarray:
    bits = (bits ^ (bits >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    found: numpy.ndarray = bits ^ (bits >> numpy.uint64(31))
    return found


def _table(name: str, columns: tuple[object, ...]) -> pyarrow.Table:
    schema = SCHEMAS[name]
    return pyarrow.table(
        [pyarrow.array(column).cast(of.type) for column, of in zip(columns, schema, strict=True)],
        schema=schema,
    )


def _horizon_ms(rate: int) -> int:
    """Return about how long it takes until so many auctions began; one is open for twice that."""
    return max(_IN_FLIGHT * _ROUND // _AUCTIONS * 1000 // rate, 1)


def _joined(between: str, *parts: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.compute.binary_join_element_wise(*parts, between)


def _words(least: int, most: int, salt: int = 0) -> pyarrow.Array:
    """Return words of so many letters, each length as often."""
    drawn = numpy.random.default_rng((least, most, salt)).integers(97, 123, (997, most))
    lengths = least + numpy.arange(997) % (most - least + 1)
    letters = drawn.astype(numpy.uint8)
    return pyarrow.array(
        [bytes(row[:end]).decode() for row, end in zip(letters, lengths, strict=True)]
    )


def _extra(size: int) -> pyarrow.Array:
    """Return what brings an event by so many letters to its size, a fifth more or less."""
    spread = round(0.2 * size)
    return _words(size - spread, size + spread - 1)


@functools.cache
def _channels() -> tuple[pyarrow.Array, pyarrow.Array]:
    """Return names and urls of all channels, the hot ones last."""
    names = [f"channel-{each}" for each in range(_CHANNELS_NUMBER)] + list(_HOT_CHANNELS)
    paths = [_words(3, 4, salt).to_pylist() for salt in (1, 2, 3)]
    urls = []
    for at in range(len(names)):
        path = "/".join(each[at * 31 % 997] for each in paths)
        url = f"https://www.nexmark.com/{path}/item.htm?query=1"
        # Of ten channels one has none, and hot ones have none.
        if at < _CHANNELS_NUMBER and at % 10:
            url += f"&channel_id={_reversed(at)}"
        urls.append(url)
    return pyarrow.array(names), pyarrow.array(urls)


def _reversed(number: int) -> int:
    """Return the size of a number whose 32 bits are reversed."""
    bits = int(f"{number:032b}"[::-1], 2)
    return min(bits, 2**32 - bits)


_MAILBOXES, _HOSTS = (
    _words(3, 6),
    pyarrow.array([f"{each}.com" for each in _words(3, 4).to_pylist()]),
)
_FOUR_DIGITS = pyarrow.array([f"{each:04d}" for each in range(10_000)])
_ITEMS, _DESCRIPTIONS = _words(3, 19), _words(3, 99)
# What an event has beside it, in bytes: of a person about 62, of an auction 110, of a bid 32.
_EXTRA = {"persons": _extra(200 - 62), "auctions": _extra(500 - 110), "bids": _extra(100 - 32)}
