"""Driver of the product's stores: what a new server process opens, and what it leaves behind."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from random import Random
from typing import Any, Protocol

from chaos.sim.disk import Disk, SimulatedMedium
from chaos.sim.faults import Fault, PlannedFault
from chaos.sim.loop import Process
from chaos.sim.planned import Setting
from chaos.sim.server import Server
from chaos.sim.server_life import Opened
from chaos.sim.service import POLICIES
from chaos.sim.world import World
from lease_server._lease_authority import LeaseAuthority
from rifl._server.recording import record
from rifl._stores.memory import MemoryStore
from rifl._stores.sqlite import restored
from rifl._stores.sqlite.store import SqliteStore
from rifl.core._serving.bounds import Bounds, KeyBounds

__all__ = ["KEYS", "Deployment", "MemoryDeployment", "SqliteDeployment"]

# So that a block is used up now and then.
_ID_BLOCK = 4
# Longer than any copy of a call is in flight, and any retry of one.
KEYS = KeyBounds(retention_s=50.0)


class Deployment(Protocol):
    """A kind of deployment, for one run."""

    def __init__(self, world: World, setting: Setting, random: Random) -> None: ...

    def open(self, process: Process, index: int) -> Opened:
        """Open what a new process of a server works with."""

    def strike(self, planned: PlannedFault, server: Server) -> None:
        """Take a fault of the store."""

    def heal(self) -> None:
        """Have everything work from now on."""

    def finish(self, world: World) -> None:
        """Record what is there in the end."""

    def close(self) -> None:
        """Let the memory go."""


class MemoryDeployment:
    """One server that forgets with its process."""

    def __init__(self, world: World, setting: Setting, random: Random) -> None:
        self._setting = setting
        self._random = random
        self._opened: set[int] = set()

    def open(self, process: Process, index: int) -> _OpenedMemory:
        """Open a new store; the first ones of machines that were copied are alike."""
        random = self._random
        if self._setting.cloned and index not in self._opened:
            random = Random("the machine that was copied")  # noqa: S311 - to be the same
        self._opened.add(index)
        return _OpenedMemory(process, self._setting, random)

    def strike(self, planned: PlannedFault, server: Server) -> None:
        """Take a fault of the store: none here."""

    def heal(self) -> None:
        """Nothing to heal."""

    def finish(self, world: World) -> None:
        """Record what the service holds."""
        world.accounts.finish()

    def close(self) -> None:
        """Do nothing."""


class _OpenedMemory:
    def __init__(self, process: Process, setting: Setting, random: Random) -> None:
        self.store = MemoryStore(random.randbytes)
        self.authority = LeaseAuthority(
            self.store.leases,
            term_s=setting.term_s,
            clock=process.clock,
            wall_clock=process.wall_clock,
            id_block=_ID_BLOCK,
            randbits=process.dice().getrandbits,
        )
        self.store.bind(
            self.authority,
            POLICIES,
            clock=process.clock,
            bounds=Bounds(window=setting.window),
            key_bounds=KEYS,
        )

    def commit(self, context: Any, reply: bytes) -> None:
        """There is nothing to commit to."""
        raise NotImplementedError

    def crash(self, *, flushed: bool) -> None:
        """Everything is gone."""

    def close(self) -> None:
        """Everything is gone."""


class SqliteDeployment:
    """One server over one file."""

    def __init__(self, world: World, setting: Setting, random: Random) -> None:
        self._setting = setting
        self.disk = Disk(world.loop, random, world.coverage)

    def open(self, process: Process, index: int) -> _OpenedSqlite:
        """Open the file that the last process left."""
        return _OpenedSqlite(process, self._setting, self.disk)

    def strike(self, planned: PlannedFault, server: Server) -> None:
        """Take a fault of the disk."""
        disk, fault = self.disk, planned.fault
        until = disk.loop.now + planned.seconds
        if fault is Fault.SLOW_DISK:
            disk.slow_until, disk.slow_s = until, planned.share * 0.5
        elif fault is Fault.FULL_DISK:
            disk.full_until = until
        elif fault is Fault.FAILED_FSYNC:
            disk.fsync_fails = True
            # It stops the store for good: an operator restarts the server.
            disk.loop.after(planned.seconds, server.restart)
        elif fault is Fault.CRASH_DISK:
            server.crash(fault)
            if not server.process.alive:
                server.forget_whom_it_knew()
                disk.wipe()
                disk.loop.after(planned.seconds, server.start)

        elif fault is Fault.RESTORE and disk.holds_a_store():
            disk.loop.after(planned.seconds, self._restore, server, disk.backup())

    def _restore(self, server: Server, backup: sqlite3.Connection) -> None:
        """Go on with a backup, as an operator does: by ``rifl restored``."""
        disk = self.disk
        server.crash(Fault.RESTORE)
        server.forget_whom_it_knew()
        disk.restore(backup)
        # Onto a disk that works: the command would say so, and be given again.
        disk.full_until, disk.fsync_fails = 0.0, False
        with closing(disk.connect()) as connection:
            restored.begin_anew(connection, f"restored at {disk.loop.now}")
        disk.loop.after(0.3, server.start)

    def heal(self) -> None:
        """Have the disk work from now on."""
        self.disk.full_until = self.disk.slow_until = 0.0
        self.disk.fsync_fails = False

    def finish(self, world: World) -> None:
        """Record what the service holds."""
        world.accounts.finish()

    def close(self) -> None:
        """Let the memory go."""
        self.disk.close()


class _OpenedSqlite:
    def __init__(self, process: Process, setting: Setting, disk: Disk) -> None:
        self._medium = SimulatedMedium(process, disk)
        self.store = SqliteStore(
            f"sqlite:///{disk.path}", wall_clock=process.wall_clock, medium=self._medium
        )
        self.authority = LeaseAuthority(
            self.store.leases,
            term_s=setting.term_s,
            clock=process.clock,
            wall_clock=process.wall_clock,
            id_block=_ID_BLOCK,
            randbits=process.dice().getrandbits,
        )
        self.store.bind(
            self.authority,
            POLICIES,
            clock=process.clock,
            bounds=Bounds(window=setting.window),
            key_bounds=KEYS,
        )
        self._handlers = disk.connect()

    def commit(self, context: Any, reply: bytes) -> None:
        """Commit a handler's transaction; raises as SQLite and ``rifl.record`` do."""
        connection = self._handlers
        connection.execute("BEGIN IMMEDIATE")
        try:
            record(context, reply, connection)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def crash(self, *, flushed: bool) -> None:
        """Leave the file, with what was being written or without."""
        for journal in self._medium.journals:
            journal.crash(flushed=flushed)
        self._handlers.close()

    def close(self) -> None:
        """Close in order."""
        self._handlers.close()
        self.store.close()
