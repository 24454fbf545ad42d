"""The cost of a message in the interpreter, counted: no clock, no noise (log-engines.md).

Over SQLite, by opcodes of our modules, as for a call (``tests/test_hot_path.py``): the bounds leave
no room for another helper function on every message.
"""

import itertools

import sharedlog
from tests.test_hot_path import SHARE, traced

MESSAGES = 100


def counted(opcodes, messages):
    """How many a message takes, and where most of them are."""
    dearest = opcodes.by_function.most_common(12)
    told = ", ".join(f"{name} {count / messages:.0f}" for name, count in dearest)
    return sum(opcodes.by_function.values()) / messages, told


def test_a_message_that_is_published_alone_stays_cheap(tmp_path, monkeypatch):
    """One append a message, with what guards its file: below a number of opcodes (§18)."""
    # As long as its directory has just changed, the file's names are looked at one by one.
    monkeypatch.setattr("_rifl_ground.sqlite.guard._STEP_NS", -(1 << 62))
    with (
        traced("sharedlog", "_rifl_ground") as opcodes,
        sharedlog.create(f"sqlite:///{tmp_path}/log.db") as log,
    ):
        log.stream("s")
        log.publish("s", b"the first")
        opcodes.counting = True
        for _ in range(MESSAGES):
            log.publish("s", b"message")
        opcodes.counting = False
    found, told = counted(opcodes, MESSAGES)
    assert found < 3300 * SHARE, told


def test_a_message_of_a_transaction_stays_cheap(tmp_path):
    """What it costs beyond the one append of all: below a number of opcodes (§13)."""
    with (
        traced("sharedlog", "_rifl_ground") as opcodes,
        sharedlog.create(f"sqlite:///{tmp_path}/log.db") as log,
    ):
        log.stream("s")
        producer = log.producer()
        for counting in (False, True):
            opcodes.counting = counting
            for _ in range(5):
                with producer.transaction() as transaction:
                    for _ in range(MESSAGES):
                        transaction.publish("s", b"message")
        opcodes.counting = False
    found, told = counted(opcodes, 5 * MESSAGES)
    assert found < 567 * SHARE, told


def test_a_message_that_is_followed_stays_cheap(tmp_path):
    """Read, checked, put in order and delivered: below a number of opcodes (C3)."""
    with (
        traced("sharedlog", "_rifl_ground") as opcodes,
        sharedlog.create(f"sqlite:///{tmp_path}/log.db") as log,
    ):
        log.stream("s")
        producer = log.producer()
        for _ in range(10):
            with producer.transaction() as transaction:
                for _ in range(MESSAGES):
                    transaction.publish("s", b"message")
        with log.follow("s") as messages:
            opcodes.counting = True
            assert sum(1 for _ in itertools.islice(messages, 10 * MESSAGES)) == 10 * MESSAGES
            opcodes.counting = False
    found, told = counted(opcodes, 10 * MESSAGES)
    assert found < 335 * SHARE, told
