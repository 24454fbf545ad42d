"""Handlers that do anything, and are cancelled at any time: what is told is true (DESIGN §4)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from rifl._stores import WrongDatabase
from rifl.core._serving.client_table import Attempt
from rifl.core._serving.later import Later
from rifl.core._shared.errors import NotRecorded, RecordPending, RiflError, StoreUnavailable
from tests.stores.conformance import FIRST
from tests.stores.shared_calls import INSERT, Calls, Place

_CALLS, _WAVES = 8, 8


class _Odd(Exception):
    """What a handler raises."""


class _Handler:
    """One to three transactions of each kind, as its dice say, in an order that it should not."""

    def __init__(self, calls: Calls, place: Place, attempt: Attempt, name: str) -> None:
        self._calls = calls
        self._place = place
        self._attempt = attempt
        self._name = name
        self._dice = random.Random(name)

    async def run(self) -> None:
        """Do so; raises, or lets errors pass."""
        for turn in range(self._dice.choice([1, 1, 1, 2, 3])):
            way = self._dice.choice([self._block, self._block, self._own, self._thread])
            try:
                await way(f"{self._name}.{turn}")
            except (_Odd, RiflError, WrongDatabase, sqlite3.Error, asyncio.CancelledError):
                if self._happens(0.5):
                    raise

    def _happens(self, share: float) -> bool:
        return self._dice.random() < share

    async def _block(self, what: str) -> None:
        block = self._calls.enter_async(self._attempt, self._dice.choice([None, None, 0.002]))
        connection = await block.__aenter__()
        try:
            connection.execute(INSERT, (what,))
            if self._happens(0.3):
                await asyncio.sleep(self._dice.random() * 0.004)
            if self._happens(0.8):
                await self._calls.store.transactions.record_async(self._attempt, FIRST, connection)
            if self._happens(0.1):
                connection.execute("INSERT OR ROLLBACK INTO effect VALUES (?)", (what,))
            if self._happens(0.15):
                raise _Odd
            if self._happens(0.05):
                # Left open.
                return
        except BaseException as error:
            await block.__aexit__(type(error), error, error.__traceback__)
            raise
        await block.__aexit__(None, None, None)

    async def _own(self, what: str) -> None:
        async with aiosqlite.connect(self._place.path, timeout=0.05) as own:
            await own.execute(INSERT, (what,))
            await self._calls.store.transactions.record_async(self._attempt, FIRST, own)
            if self._happens(0.3):
                await asyncio.sleep(0.001)
            if self._happens(0.9):
                await own.commit()

    async def _thread(self, what: str) -> None:
        def work() -> None:
            with self._calls.enter(self._attempt, 0.5) as connection:
                connection.execute(INSERT, (what,))
                if records:
                    self._calls.store.transactions.record(self._attempt, FIRST, connection)

        records = self._happens(0.9)
        # Cancelled, it goes on when the handler has ended.
        await asyncio.to_thread(work)


async def _told(calls: Calls, place: Place, attempt: Attempt, name: str) -> str:
    """Run a handler, cancel it perhaps, and end the call as the rules do; what is told."""
    dice = random.Random(f"cancel {name}")
    task = asyncio.ensure_future(_Handler(calls, place, attempt, name).run())
    if dice.random() < 0.4:
        await asyncio.sleep(dice.random() * 0.02)
        task.cancel()
    with contextlib.suppress(Exception, asyncio.CancelledError):
        await task
    try:
        standing: Any = calls.store.committed(attempt)
        if isinstance(standing, Later):
            standing = await standing
    except (StoreUnavailable, NotRecorded):
        standing = None
    except RecordPending:
        calls.store.abandon(attempt)
        return "unknown"
    if standing is None:
        calls.store.abandon(attempt)
        return "not executed"
    calls.store.adopt(attempt, standing)
    return "executed"


@pytest.mark.parametrize("seed", [3, 6, 11, 12, 13])
async def test_what_is_told_is_what_stands(tmp_path: Path, seed: int) -> None:
    """One effect and its record where the call was executed, else neither, whatever it did (§1)."""
    place = Place(tmp_path / "store.db")
    calls = Calls(place)
    for wave in range(_WAVES):
        attempts = {f"{seed}.{wave}.{number}": calls.begin() for number in range(_CALLS)}
        told = await asyncio.gather(
            *(_told(calls, place, attempt, name) for name, attempt in attempts.items())
        )
        for (name, attempt), how in zip(attempts.items(), told, strict=True):
            effects = [what for what in place.effects() if what.rpartition(".")[0] == name]
            recorded = calls.store._main.read(attempt.call) is not None
            assert len(effects) == recorded, name
            assert how == "unknown" or recorded == (how == "executed"), name
    await asyncio.to_thread(calls.opened.close)
