"""All who keep something in a SQLite file, behind one interface; and one of them on a bad disk.

``python -m tests.ground.sqlite_users USER FOLDER`` writes, and prints which names that has synced.
Then it has the kernel fail one sync of the file, and prints what became of that write and of the
next two: "ok", or the error's name. With ``fork`` a child opens the file instead.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import sharedlog
from _rifl_ground.loans import Loan
from curp.log import open_engine
from curp.log._errors import LogStopped
from lease_server._errors import StorageUnavailable
from rifl.core._shared.errors import RecordPending, StoreUnavailable
from sharedlog._consumer.sqlite import SqliteLane
from sharedlog._core.commit import Commit, NewEntry
from sharedlog._core.consumer.members import Gone
from sharedlog._engines.sqlite import SqliteEngine, create
from tests.curp.log.conformance import Writer
from tests.curp.logs import created
from tests.faults.syscalls import Held, notify_fsync
from tests.stores.conformance import FIRST, IDEMPOTENT, call, wait
from tests.stores.test_replaced_files import OneFile
from tests.stores.test_sqlite import ATOMIC

__all__ = ["USERS", "SqliteUser"]


class SqliteUser:
    """One who has a file open. ``refused``: what it raises of a file that it no longer uses."""

    refused: tuple[str, ...]
    wal = True

    def __init__(self, folder: Path) -> None:
        self.file = folder / "data" / "main.db"
        self.file.parent.mkdir()
        self.make()
        self.open()

    def make(self) -> None:
        """Make what has to be there before it is opened."""

    def open(self) -> None:
        """Open it, or open it again."""

    def write(self) -> None:
        """Have something on the disk."""

    def close(self) -> None:
        """Close it."""


class StoreUser(SqliteUser):
    """A rifl store, whose journal writes records."""

    refused = (RecordPending.__name__, StoreUnavailable.__name__)

    def make(self) -> None:
        """Make a client, which stays."""
        self.files = OneFile(self.file.parent)
        self.client, self.seq = self.files.client(), 0
        self.files.store.close()

    def open(self) -> None:
        """See there."""
        self.files.open()

    def write(self) -> None:
        """Record an answer."""
        self.seq += 1
        one = call(self.client, self.seq, first=max(1, self.seq - 3))
        wait(self.files.store.finish(self.files.begin(one, IDEMPOTENT), FIRST))

    def close(self) -> None:
        """See there."""
        self.files.store.close()


class BlockUser(StoreUser):
    """A rifl store, in the transaction that handlers share."""

    def write(self) -> None:
        """Record an answer there."""
        self.seq += 1
        one = call(self.client, self.seq, first=max(1, self.seq - 3))
        attempt = self.files.begin(one, ATOMIC)
        with self.files.store.shared_blocks.block(attempt, None) as connection:
            self.files.store.transactions.record(attempt, FIRST, connection)


class LeaseUser(StoreUser):
    """A rifl store's leases."""

    refused = (StorageUnavailable.__name__,)

    def write(self) -> None:
        """Reserve ids."""
        self.files.store.leases.reserve_ids(1)


class LogUser(SqliteUser):
    """A shared log."""

    refused = (sharedlog.LogStopped.__name__,)

    def make(self) -> None:
        """See there."""
        create(self.file)

    def open(self) -> None:
        """See there."""
        self.engine = SqliteEngine(self.file)

    def write(self) -> None:
        """Append."""
        self.engine.commit(Commit(entries=(NewEntry(b"x" * 500, ("t",)),)))

    def close(self) -> None:
        """See there."""
        self.engine.close()


class GroupUser(SqliteUser):
    """A group's log."""

    refused = (LogStopped.__name__,)

    def make(self) -> None:
        """See there."""
        self.url = created(f"sqlite:///{self.file}?group=bank")

    def open(self) -> None:
        """See there."""
        self.writer = Writer(open_engine(self.url))

    def write(self) -> None:
        """Append."""
        self.writer.append(b"x" * 500)

    def close(self) -> None:
        """See there."""
        with suppress(LogStopped):
            self.writer.engine.end_leadership(self.writer.configuration)
        self.writer.engine.close()


class ConsumerUser(SqliteUser):
    """A consumer's effects, in an application's file as most are: without a WAL."""

    refused = ("StoreStopped", sharedlog.StoreWentBack.__name__)
    wal = False

    def make(self) -> None:
        """Make the application's table."""
        with closing(sqlite3.connect(self.file)) as connection, connection:
            if self.wal:
                connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE effect (what BLOB)")

    def open(self) -> None:
        """See there."""
        self.store = SqliteLane(self.file, "billing")
        self.number = getattr(self, "number", 0) + 1
        self.checkpoint = self.store.take("orders/0", self.number, gone=Gone.LEFT, anew=False)

    def write(self) -> None:
        """Commit an effect."""
        self.store.begin()
        lent = self.store.lend(Loan(AssertionError))
        lent.execute("INSERT INTO effect VALUES (randomblob(500))")
        self.store.take_back()
        self.store.commit("orders/0", self.checkpoint)

    def close(self) -> None:
        """See there."""
        self.store.close()


class WalConsumerUser(ConsumerUser):
    """The same in a file with a WAL."""

    wal = True


class RelayUser(SqliteUser):
    """An outbox's relay, and the application that publishes."""

    refused = ("StoreStopped", sharedlog.OutboxWentBack.__name__)

    def make(self) -> None:
        """Make the outbox, and a log elsewhere."""
        self.log = sharedlog.create("memory:")
        self.log.stream("orders", substreams=1)
        with closing(self._connect()) as connection, connection:
            if self.wal:
                connection.execute("PRAGMA journal_mode=WAL")
            sharedlog.create_outbox(connection, self.log)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.file, isolation_level="IMMEDIATE", check_same_thread=False)

    def open(self) -> None:
        """See there."""
        self.relay = sharedlog.relay(f"sqlite:///{self.file}", self.log)
        # It stays open: the last one that closes brings the WAL into the file.
        self.application = self._connect()
        self._publish()

    def write(self) -> None:
        """Have relayed what was published, and publish what the next one relays."""
        assert self.relay.round() >= 1
        self._publish()

    def _publish(self) -> None:
        with self.application:
            sharedlog.outbox(self.application, self.log).publish("orders", b"x" * 500)
        # As a relay does while it waits.
        self.relay._look(0)

    def close(self) -> None:
        """See there."""
        self.application.close()
        self.relay.close()


class JournalRelayUser(RelayUser):
    """The same in a file without a WAL, as most are."""

    wal = False


USERS: dict[str, type[SqliteUser]] = {
    "store": StoreUser,
    "store-block": BlockUser,
    "store-leases": LeaseUser,
    "log": LogUser,
    "group": GroupUser,
    "consumer": ConsumerUser,
    "consumer-wal": WalConsumerUser,
    "relay": RelayUser,
    "relay-journal": JournalRelayUser,
}


class _Disk:
    """Lets every sync of this process be carried out, but for those of one file that fail."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.fails = 0
        # The names that were synced, in their order.
        self.synced: list[str] = []
        self._listener: queue.Queue[int] = queue.Queue()
        # It is not filtered itself, as it was there before.
        threading.Thread(target=self._run, daemon=True).start()
        self._listener.put(notify_fsync())

    def _run(self) -> None:
        held = Held(self._listener.get())
        with suppress(OSError):
            while True:
                number, file = held.next()
                self.synced.append(Path(file).name)
                if self.fails and self._name in file:
                    self.fails -= 1
                    held.fail(number)
                else:
                    held.release(number)


def outcome(write: Callable[[], Any]) -> str:
    """What became of a write."""
    try:
        write()
    except Exception as error:  # noqa: BLE001 - told by its name
        return type(error).__name__
    return "ok"


def in_a_child(user: SqliteUser) -> None:
    """Tell what a forked child is told that opens the file itself."""
    if (child := os.fork()) == 0:
        print(outcome(user.open), flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    """Write on a disk that fails one sync, or fork."""
    user, folder, *forks = sys.argv[1:]
    if forks:
        in_a_child(USERS[user](Path(folder)))
        return
    disk = _Disk("main.db")
    made = USERS[user](Path(folder))
    disk.synced.clear()
    made.write()
    print(*disk.synced, flush=True)
    disk.fails = 1
    for _ in range(3):
        print(outcome(made.write), flush=True)
    made.close()
    # The last connection that is closed brings it into the file, as a rule.
    print("closed", made.wal and Path(f"{made.file}-wal").stat().st_size > 0, flush=True)


if __name__ == "__main__":
    main()
