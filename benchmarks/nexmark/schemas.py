"""The streams of NEXMark and their columns: events, what stages give each other, and outputs."""

from __future__ import annotations

import pyarrow

__all__ = ["EVENTS", "OUTPUTS", "QUESTIONS", "SCHEMAS", "SUBSTREAMS", "TIME"]

EVENTS = ("persons", "auctions", "bids")
# NEXMark's name of each query, and what it asks for.
QUESTIONS = {
    "q1": ("currency conversion", "bids, with prices in another currency"),
    "q2": ("selection", "bids on some auctions"),
    "q3": ("local items", "who sells something of a category in some states"),
    "q4": ("average price of a category", "what was paid in sales that closed within ten seconds"),
    "q5": ("hot items", "the auctions with most bids in ten seconds, every two seconds"),
    "q6": ("average price of a seller", "what was paid in the last ten sales, at each sale"),
    "q7": ("highest bid", "the highest bids of ten seconds"),
    "q8": ("new users", "who came and sold something within the same ten seconds"),
}
OUTPUTS = tuple(QUESTIONS)
# Of each stream, and partitions of each topic.
SUBSTREAMS = 2
TIME = pyarrow.timestamp("us", "UTC")
_KINDS = {"long": pyarrow.int64(), "text": pyarrow.string(), "time": TIME}


def _columns(words: str) -> pyarrow.Schema:
    pairs = (each.rsplit(" ", 1) for each in words.split(", "))
    return pyarrow.schema([(name, _KINDS[kind]) for name, kind in pairs])


SCHEMAS = {
    name: _columns(words)
    for name, words in {
        "persons": (
            "id long, name text, email text, credit_card text, city text, state text, "
            "date_time time, extra text"
        ),
        "auctions": (
            "id long, item_name text, description text, initial_bid long, reserve long, "
            "date_time time, expires time, seller long, category long, extra text"
        ),
        "bids": (
            "auction long, bidder long, price long, channel text, url text, date_time time, "
            "extra text"
        ),
        "sold": "auction long, category long, seller long, price long, expires time",
        "counts": "auction long, number long, till time",
        "highest": "price long, till time",
        # An output's last column is the event time that a row stands for.
        "q1": "auction long, bidder long, price long, extra text, date_time time",
        "q2": "auction long, price long, date_time time",
        "q3": "name text, city text, state text, auction long, date_time time",
        "q4": "category long, price long, number long, date_time time",
        "q5": "auction long, number long, date_time time",
        "q6": "seller long, auction long, price long, date_time time",
        "q7": "auction long, bidder long, price long, bid_time time, extra text, date_time time",
        "q8": "id long, name text, auction long, date_time time",
    }.items()
}
