"""The answers of NEXMark's queries over all events at once, by DuckDB: what streams have to give.

Independent of the queries: it knows only what is asked. Windows are those of Unix time; times are
in microseconds. A row of an answer has the columns of its query's output, in that order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow

__all__ = ["ANSWERS", "Answer", "Difference", "answers", "before", "compare"]

Answer = Counter[tuple[Any, ...]]

# The price that an auction was sold for: its highest bid while it was open.
_SOLD = """
CREATE TEMP VIEW sold AS
  SELECT a.id AS auction, a.category, a.seller, epoch_us(a.expires) AS expires,
         max(b.price) AS price
  FROM auctions a JOIN bids b
    ON a.id = b.auction AND b.date_time >= a.date_time AND b.date_time <= a.expires
  GROUP BY ALL
"""

# To ``schemas.QUESTIONS``.
ANSWERS = {
    "q1": "SELECT auction, bidder, price * 908 // 1000, extra, epoch_us(date_time) FROM bids",
    "q2": "SELECT auction, price, epoch_us(date_time) FROM bids WHERE auction % 123 = 0",
    "q3": """
SELECT p.name, p.city, p.state, a.id, greatest(epoch_us(p.date_time), epoch_us(a.date_time))
FROM persons p JOIN auctions a ON p.id = a.seller
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
""",
    "q4": """
SELECT category, sum(price)::BIGINT // count(*), count(*),
       (expires // 10_000_000 + 1) * 10_000_000 AS till
FROM sold GROUP BY category, till
""",
    "q5": """
WITH counted AS (
  SELECT auction, count(*) AS number,
         (epoch_us(date_time) // 2_000_000 + 5 - slides.back) * 2_000_000 AS till
  FROM bids, range(5) AS slides(back) GROUP BY auction, till
)
SELECT auction, number, till FROM counted
QUALIFY number = max(number) OVER (PARTITION BY till)
""",
    "q6": """
WITH latest AS (
  SELECT seller, auction, expires, sum(price) OVER ten AS prices, count(*) OVER ten AS number
  FROM sold
  WINDOW ten AS (
    PARTITION BY seller ORDER BY expires, auction ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
  )
)
SELECT seller, auction, prices::BIGINT // number, expires FROM latest
""",
    "q7": """
WITH timed AS (SELECT *, (epoch_us(date_time) // 10_000_000 + 1) * 10_000_000 AS till FROM bids)
SELECT auction, bidder, price, epoch_us(date_time), extra, till FROM timed
QUALIFY price = max(price) OVER (PARTITION BY till)
""",
    "q8": """
SELECT p.id, p.name, a.id, greatest(epoch_us(p.date_time), epoch_us(a.date_time))
FROM persons p JOIN auctions a ON p.id = a.seller
WHERE epoch_us(p.date_time) // 10_000_000 = epoch_us(a.date_time) // 10_000_000
""",
}


def answers(
    tables: Mapping[str, pyarrow.Table], only: Iterable[str] = tuple(ANSWERS)
) -> dict[str, Answer]:
    """Return the rows of each answer, with how often each is there."""
    import duckdb

    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            database.register(name, table)
        database.execute(_SOLD)
        return {query: Counter(database.execute(ANSWERS[query]).fetchall()) for query in only}


def before(found: Mapping[tuple[Any, ...], int], time_us: int) -> Answer:
    """Return the rows of an output before a time: without those of closing events."""
    return Counter({row: many for row, many in found.items() if row[-1] < time_us})


class Difference(Counter[str]):
    """How what a chain gave differs from an answer, in rows."""

    @property
    def is_none(self) -> bool:
        """Whether it is the answer, row by row."""
        return not (self["wrong"] or self["missing"] or self["duplicates"])


def compare(found: Answer, answer: Answer) -> Difference:
    """Compare the rows that a chain gave with an answer.

    ``rows``: of the answer; ``wrong``: given, and not of the answer; ``missing``: of the answer,
    and not given; ``duplicates``: of the answer, and given too often.
    """
    wrong = sum(many for row, many in found.items() if row not in answer)
    extra = (found - answer).total() - wrong
    return Difference(
        rows=answer.total(),
        wrong=wrong,
        missing=(answer - found).total(),
        duplicates=extra,
    )
