"""Events of NEXMark's auctions: people, what they sell, and bids, made of a seed.

Each column of an event is drawn by its number: so any part of the events is the same, however they
are cut into parts. Of 50 events one is a person, three are auctions, and 46 are bids, as in the
generator of NEXMark; half of the bids are on the newest hundredth auction, and most sellers and
bidders are a few hot ones. As there, an event has words that bring it to about so many bytes on
average (eight a number, and its texts): 200 a person, 500 an auction, 100 a bid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from benchmarks.nexmark.schemas import SCHEMAS

__all__ = ["CLOSING_HOURS", "Events"]

# Of 50 events in a row, the first is a person, and so many are auctions.
_ROUND, _AUCTIONS = 50, 3
_FIRST_ID = 1000
# An auction is open while about so many others begin; newest people and auctions are drawn from.
_IN_FLIGHT, _ACTIVE = 100, 1000
_HOT = 100
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
_CHANNELS = pyarrow.array(("Google", "Facebook", "Baidu", "Apple"))


class Events(NamedTuple):
    """What is drawn by a seed; ``rate``: events a second of event time, from ``begin_us`` on."""

    seed: int = 1
    rate: int = 1000
    begin_us: int = 1_760_000_000_000_000

    @property
    def longest_us(self) -> int:
        """How long an auction is open at most."""
        return 2 * _IN_FLIGHT * _ROUND * 1_000_000 // (_AUCTIONS * self.rate) + 1

    def time_us(self, numbers: numpy.ndarray) -> numpy.ndarray:
        """Return when events are."""
        return self.begin_us + numbers * 1_000_000 // self.rate

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
        bids = (sold, people, at, nothing, times + 1, nothing)
        return {
            "persons": _table("persons", persons),
            "auctions": _table("auctions", auctions),
            "bids": _table("bids", bids),
        }

    def _persons(self, numbers: numpy.ndarray) -> pyarrow.Table:
        first, last = self._of(_FIRST, numbers, 1), self._of(_LAST, numbers, 2)
        cards = pyarrow.array(10**15 + self._below(9 * 10**15, numbers, 3)).cast(pyarrow.string())
        names = pyarrow.compute.binary_join_element_wise(first, last, " ")
        mail = pyarrow.array(["@example.com"]).take(pyarrow.array(0 * numbers))
        return _table(
            "persons",
            (
                _FIRST_ID + numbers // _ROUND,
                names,
                pyarrow.compute.binary_join_element_wise(first, last, mail, "."),
                cards,
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
        seller = numpy.where(
            self._below(4, numbers, 1) > 0, hot, self._newest(newest, _ACTIVE, numbers, 2)
        )
        price, more = self._price(numbers, 3), self._price(numbers, 4)
        length = 1 + self._below(self.longest_us - 1, numbers, 5)
        return _table(
            "auctions",
            (
                _FIRST_ID + newest * _AUCTIONS + numbers % _ROUND - 1,
                self._of(_NAMES, numbers, 6),
                self._of(_NAMES, numbers, 7),
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
        auction = numpy.where(
            self._below(2, numbers, 1) > 0,
            newest // _HOT * _HOT,
            self._newest(newest, _IN_FLIGHT, numbers, 2),
        )
        bidder = numpy.where(
            self._below(4, numbers, 3) > 0,
            numpy.minimum(people // _HOT * _HOT + 1, people),
            self._newest(people, _ACTIVE, numbers, 4),
        )
        return _table(
            "bids",
            (
                _FIRST_ID + auction,
                _FIRST_ID + bidder,
                self._price(numbers, 5),
                self._of(_CHANNELS, numbers, 6),
                self.time_us(numbers),
                self._of(_EXTRA["bids"], numbers, 7),
            ),
        )

    def _newest(
        self, newest: numpy.ndarray, most: int, numbers: numpy.ndarray, salt: int
    ) -> numpy.ndarray:
        """Return one of the newest so many that there are."""
        there = numpy.minimum(newest + 1, most)
        drawn = self._draw(numbers, salt) % there.astype(numpy.uint64)
        found: numpy.ndarray = newest - drawn.astype(numpy.int64)
        return found

    def _price(self, numbers: numpy.ndarray, salt: int) -> numpy.ndarray:
        part = self._draw(numbers, salt) / numpy.float64(2**64)
        found: numpy.ndarray = numpy.rint(100 * 10 ** (6 * part)).astype(numpy.int64)
        return found

    def _of(self, words: pyarrow.Array, numbers: numpy.ndarray, salt: int) -> pyarrow.Array:
        return words.take(pyarrow.array(self._below(len(words), numbers, salt)))

    def _below(self, end: int, numbers: numpy.ndarray, salt: int) -> numpy.ndarray:
        drawn: numpy.ndarray = (self._draw(numbers, salt) % numpy.uint64(end)).astype(numpy.int64)
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


def _words(length: int, spread: int) -> pyarrow.Array:
    """Return words of so many letters on average, and at most so many more or less."""
    drawn = numpy.random.default_rng(length).integers(97, 123, (997, length + spread))
    lengths = length - spread + numpy.arange(997) % (2 * spread + 1)
    letters = drawn.astype(numpy.uint8)
    return pyarrow.array(
        [bytes(row[:end]).decode() for row, end in zip(letters, lengths, strict=True)]
    )


_NAMES = _words(30, 10)
# What other columns leave of an event's bytes; a fifth more or less, as in NEXMark's generator.
_EXTRA = {"persons": _words(123, 25), "auctions": _words(389, 78), "bids": _words(62, 12)}
