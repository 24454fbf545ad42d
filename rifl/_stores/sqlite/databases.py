"""The databases of one store: its own file, and those that atomic methods name."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from rifl._stores.base import Unresolved
from rifl._stores.codec import RecordCodec
from rifl._stores.sqlite.address import enforces_keys, path_of
from rifl._stores.sqlite.database import Database, LookedUp
from rifl._stores.sqlite.medium import Medium
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.errors import StoreUnavailable
from rifl.core._shared.record import CompletionRecord

_Found = TypeVar("_Found")


class Databases:
    """Files with rifl's rows, each once, however it is named; ``main`` is the store's own.

    A client is registered in ``main`` before anything of it is in another one.
    """

    def __init__(self, url: str, lock_timeout_s: float, codec: RecordCodec, medium: Medium) -> None:
        self._lock_timeout_s = lock_timeout_s
        self._codec = codec
        self._medium = medium
        self.main = Database(path_of(url), None, lock_timeout_s, codec, medium)
        self.main.foreign_keys = enforces_keys(url)
        self.by_name = {self.main.name: self.main}
        self._by_url: dict[str | None, Database] = {None: self.main}

    def __iter__(self) -> Iterator[Database]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def open(self, policies: Iterable[MethodPolicy]) -> None:
        """Open those that the methods name."""
        for policy in policies:
            if policy.database not in self._by_url:
                self._open(str(policy.database))

    def of(self, attempt: Attempt) -> Database:
        """Return the one that has the records of the attempt's method."""
        return self._by_url[attempt.policy.database]

    def others(self) -> list[Database]:
        """Return all but the store's own."""
        return [other for other in self if other is not self.main]

    def start(
        self,
        on_health: Callable[[str, Exception | None], None],
        on_commit: Callable[[int, float, Exception | None], None] | None,
    ) -> None:
        """Start their journals; ``on_health`` is told with a database's name."""
        for database in self:
            database.start(
                lambda error, name=database.name: on_health(name, error),  # type: ignore[misc]
                on_commit,
            )

    def stopped(self) -> bool:
        """Whether nothing is written to one of them any more."""
        return any(database.journal.stopped for database in self)

    def read(self, call: Call) -> CompletionRecord | None:
        """Return the durable record of a call, wherever it is; None if there is none."""
        for database in self:
            record = database.read(call)
            if record is not None:
                return record
        return None

    def look_up(self, calls: Sequence[Call]) -> list[LookedUp]:
        """Return what is durable of keyed calls, wherever it is.

        Raises ``StoreUnavailable``, and stops the file's journal where it is damaged.
        """
        found: list[LookedUp] = []
        for database in self:
            some = self._read_from(database, partial(database.look_up, calls))
            found = [_both(*pair) for pair in zip(found, some, strict=True)] if found else some
        return found

    def keys_after(
        self, name: str, after: tuple[int, bytes], limit: int
    ) -> list[tuple[int, bytes]]:
        """Return so many keys of a file after one of them; raises as ``look_up``."""
        database = self.by_name[name]
        return self._read_from(database, partial(database.keys_after, after, limit))

    def _read_from(self, database: Database, read: Callable[[], _Found]) -> _Found:
        try:
            return read()
        except sqlite3.Error as error:
            database.journal.stop_for(error)
            raise StoreUnavailable(f"keys cannot be looked up: {error}") from error

    def look(self) -> None:
        """Check the files that see no commits."""
        for database in self:
            database.look()

    def close(self) -> None:
        """Make durable what is queued and let the connections go; ``leave`` follows."""
        for database in self:
            database.close()

    def leave(self) -> None:
        """Let the files go, once nothing of this process writes to them."""
        for database in self:
            database.leave()

    def keys(self) -> Counter[int]:
        """Return how many keys each client has; raises ``sqlite3.Error``."""
        kept = Counter[int]()
        for database in self:
            kept.update(database.keys())
        return kept

    def unresolved(self) -> Unresolved:
        """Count the unknown calls that were not settled; raises ``sqlite3.Error``."""
        found = [database.unresolved() for database in self]
        oldest_s = max((age_s for _, age_s in found if age_s is not None), default=0)
        return Unresolved(sum(calls for calls, _ in found), float(max(0, oldest_s)))

    def _open(self, url: str) -> None:
        path = path_of(url).resolve()
        database = self.by_name.get(str(path))
        if database is None:
            database = Database(
                path, self.main.store_id, self._lock_timeout_s, self._codec, self._medium
            )
            self.by_name[database.name] = database
        database.foreign_keys = database.foreign_keys or enforces_keys(url)
        self._by_url[url] = database


def _both(one: LookedUp, other: LookedUp) -> LookedUp:
    """Return what two files have of a call: one of them its record, each its counts."""
    recorded = one if one.record is not None else other
    return recorded._replace(keys=one.keys + other.keys, bytes=one.bytes + other.bytes)
