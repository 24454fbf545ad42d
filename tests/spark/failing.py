"""Tasks that fail midway on their first attempts, surely after effects of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["failing_midway", "losing_its_shuffle"]


def failing_midway(
    effects: Path, prefix: str = "", attempts: int = 1
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function for ``mapInArrow`` that passes rows on and then fails the task.

    Partition 0 fails in its first ``attempts`` attempts, once the bank has booked
    a row of it, under its reference with the prefix before it.
    """

    def passed_on(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        from tests.helpers.waiting import until

        context = TaskContext.get()
        assert context is not None
        ours: set[str] = set()
        for batch in batches:
            ours.update(f"{prefix}{name}" for name in batch.column("reference").to_pylist())
            yield batch
        if context.partitionId() == 0 and context.attemptNumber() < attempts:
            until(
                lambda: any(line.strip() in ours for line in effects.open()),
                "an effect before the failure",
                120,
            )
            raise RuntimeError("this attempt was meant to fail")

    return passed_on


def losing_its_shuffle(
    effects: Path, prefix: str, local: str, seen: Path
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function for ``mapInArrow`` after a shuffle, whose files vanish once.

    The first attempt of partition 0 removes them and fails, once the bank has booked
    a row of it: the next one cannot read them, and Spark runs both stages again. Each
    attempt of that partition adds its number within its stage to ``seen``.
    """
    fail = failing_midway(effects, prefix, attempts=1)

    def passed_on(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 0:
            yield from batches
            return
        first = not seen.exists()
        with seen.open("a") as attempts:
            attempts.write(f"{context.attemptNumber()}\n")
        if not first:
            yield from batches
            return
        try:
            yield from fail(batches)
        finally:
            for file in Path(local).glob("blockmgr-*/*/shuffle_*"):
                file.unlink(missing_ok=True)

    return passed_on
