"""Lost requests and replies: a message is read once, or never if it was refused (L3, C1)."""

from datetime import timedelta
from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sharedlog
from sharedlog._core.errors import LogFull
from sharedlog._core.producers import OPEN
from sharedlog._core.spans import retire
from tests.sharedlog.faulty import faulty
from tests.sharedlog.reads import messages

LARGE = 400_000
FAULTS = st.sampled_from(["", "", "", "lost", "late", "full"])
STEPS = st.one_of(
    st.tuples(st.just("publish")),
    st.tuples(st.just("transaction"), st.integers(0, 7), st.booleans(), st.booleans()),
    st.tuples(st.just("named"), st.integers(1, 6)),
    st.tuples(st.just("retire")),
)


class Publishing:
    """What was published, and what its callers know of it."""

    def __init__(self, log: sharedlog.Log) -> None:
        self.log = log
        self.producer = log.producer()
        self.named = log.producer("name")
        self.number = 0
        # By the caller's knowledge: there, maybe there, and what says so later.
        self.there: list[list[str]] = []
        self.unknown: list[tuple[list[str], object]] = []
        self.never: list[list[str]] = []

    def values(self, count: int, *, large: bool) -> list[str]:
        self.number += 1
        return [f"{self.number}.{part} " + "x" * (LARGE * large) for part in range(count)]

    def refused(self, error: sharedlog.LogError) -> None:
        """It is known not to be in the log."""
        assert error.appended is False

    def publish(self) -> None:
        mine = self.values(1, large=False)
        try:
            self.log.publish("s", mine[0])
        except sharedlog.AppendUnknown as error:
            self.unknown.append((mine, partial(self.log.settle, error)))
        except sharedlog.LogError as error:
            self.refused(error)
            self.never.append(mine)
        else:
            self.there.append(mine)

    def transaction(
        self, producer: sharedlog.Producer, count: int, *, large: bool, leaves: bool
    ) -> None:
        mine = self.values(count, large=large)
        try:
            transaction = producer.transaction()
        except sharedlog.LogError as error:
            self.refused(error)
            self.never.append(mine)
            return
        try:
            with transaction:
                for value in mine:
                    transaction.publish("s", value)
                if leaves:
                    raise ZeroDivisionError
        except (sharedlog.LogError, ZeroDivisionError):
            pass
        if transaction.committed:
            self.there.append(mine)
        elif transaction.committed is None:
            self.unknown.append((mine, transaction.settle))
        else:
            self.never.append(mine)

    def settled(self) -> None:
        """Every outcome is known, now that the log answers."""
        for mine, settle in self.unknown:
            try:
                settle()
            except sharedlog.LogError:
                self.never.append(mine)
            else:
                self.there.append(mine)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(
    steps=st.lists(STEPS, max_size=12),
    faults=st.lists(FAULTS, max_size=30),
    patience=st.sampled_from([0, 0.02]),
)
def test_each_message_is_read_once_or_was_refused(steps, faults, patience):
    """Nothing is lost, doubled, torn or reordered, and nothing stays pending (L3, C1)."""
    with sharedlog.create("memory:") as log:
        log.stream("s", 1)
        mine, engine = faulty(log, timedelta(seconds=patience))
        engine.faults = [LogFull("no room") if each == "full" else each for each in faults]
        publishing = Publishing(mine)
        for step in steps:
            match step:
                case ("publish",):
                    publishing.publish()
                case ("transaction", count, large, leaves):
                    publishing.transaction(publishing.producer, count, large=large, leaves=leaves)
                case ("named", count):
                    publishing.transaction(publishing.named, count, large=count > 3, leaves=False)
                case ("retire",):
                    for key in log._engine.scan(OPEN):
                        log._run(retire(int(key.removeprefix(OPEN))))
        engine.faults = []
        publishing.settled()
        for producer in (publishing.producer, publishing.named):
            producer.transaction().commit()
        read = [each.text for each in messages(log, "s")]
        expected = [value for mine in publishing.there for value in mine]
        assert sorted(read) == sorted(expected)
        for each in publishing.there:
            # Adjacent, and in order.
            at = read.index(each[0]) if each else 0
            assert read[at : at + len(each)] == each
        assert log._engine.scan(OPEN) == {}
