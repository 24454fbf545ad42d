"""Model of the world: a deployed group: replicas, witnesses, one log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from random import Random

from chaos.sim.faults import ALL, Fault, PlannedFault
from chaos.sim.group.log import LogStore
from chaos.sim.group.operator import Operator
from chaos.sim.group.replica import Replica
from chaos.sim.loop import Process
from chaos.sim.machine import Machine
from chaos.sim.planned import Setting
from chaos.sim.server import Server
from chaos.sim.service import decode
from chaos.sim.witness import Witness
from chaos.sim.world import World
from curp._core.entries import ApplicationVersion, Operation
from curp._core.poison import HELD, Ledger
from curp._core.witness_list import WitnessList
from curp._replica.metadata import LIST_KEY
from curp._replica.poisoning import read_ledger, update_ledger
from curp._wire.entries import entry_from_bytes
from curp._wire.metadata import witness_list_from_bytes
from curp._wire.snapshots import snapshot_from_chunks
from curp.log._creation import LOG_ID_KEY
from curp.log._values import LogEntry, NewLog
from rifl.core._shared.identity import RpcId

__all__ = ["GroupDeployment"]

_LOG_ID = 0xA
# How often an operator looks, and at how many deaths the product waits for one.
_POISON_S = 0.5
_POISON_DEATHS = 3
# A replica that could speak for so long has said that it lives.
_SPOKEN_S = 1.5


class GroupDeployment:
    """Three replicas, three witnesses, one log."""

    def __init__(self, world: World, setting: Setting, random: Random) -> None:
        self.world = world
        self.random = random
        self._setting = setting
        self._lives = 0
        new = NewLog({LOG_ID_KEY: _LOG_ID.to_bytes(8)})
        self.log = LogStore(lambda: world.loop.now, self._archive, new)
        # Of who looks, and is never struck.
        self._seen = self.log.engine()
        # Everything that was ever in the log.
        self._appended: list[LogEntry] = []
        # By replica: one of them may be cut off from the engine, and from nothing else.
        self.lossy_until = [0.0] * setting.servers
        self.stalled_until = [0.0] * setting.servers
        self.loss = 0.0
        pool = range((setting.witnesses or 0) + setting.spare_witnesses)
        self._witnesses = {f"witness{at}:1": Witness(world, at, random) for at in pool}
        # Those of the first list.
        self.witness_names = tuple(self._witnesses)[: setting.witnesses]
        self._replicas: dict[int, Replica] = {}
        # Which life of a replica led under which number; since when calls are charged with the
        # death of one that lives, by that number.
        self.leaders: dict[int, Replica] = {}
        self._charged: dict[tuple[RpcId, int], float] = {}
        world.loop.after(_POISON_S, self._look_for_false_deaths)
        # The newest version that an operator finalized, or was about to.
        self._finalized = 0
        if setting.upgrades:
            world.loop.after(_POISON_S, self._see_to_poison)
        # Never restarts: a group waits without end for one that remembers.
        self._spared = random.choice(list(self._witnesses.values()))

    def lives(self) -> int:
        """Count the lives of replicas: each is another one to the engine."""
        self._lives += 1
        return self._lives

    def witness(self, address: str) -> Witness:
        """Return the witness at an address."""
        return self._witnesses[address]

    def open(self, process: Process, index: int) -> Replica:
        """Begin the life of a replica."""
        replica = self._replicas[index] = Replica(process, index, self._setting, self)
        return replica

    def version(self) -> int:
        """Return the application version that the next life of a replica has."""
        if not self._setting.upgrades:
            return 0
        active = max(self._finalized, 1)
        # The first ones are all of the version that the log begins with.
        return active + (self._lives % 2 if self._appended else 0)

    def may_finalize(self, version: int) -> bool:
        """Whether all replicas that live are of that version; then none is older any more."""
        lives = [each for each in self._replicas.values() if each.process.alive]
        older = sum(each.application_version < version for each in lives)
        # One may be left behind.
        if version <= self._finalized or older > (self._lives % 3 == 0 and len(lives) > 1):
            return False
        self._finalized = version
        return True

    def _see_to_poison(self) -> None:
        """Set aside what recoveries wait for, as an operator who knows what it does."""
        if self.world.over:
            return
        self.world.loop.after(_POISON_S, self._see_to_poison)
        engine = self._seen
        leadership = engine.leadership()
        for case in read_ledger(engine).cases:
            waits = case.how == HELD and case.deaths >= _POISON_DEATHS
            if leadership is None or not waits or case.who or case.closed:
                continue
            self.world.trace("operator", f"sets {case.rpc_id} aside")
            update_ledger(
                engine,
                leadership.configuration,
                partial(Ledger.decided, case=case, who="operator", why="it kills"),
            )

    def _look_for_false_deaths(self) -> None:
        """Find deaths that calls are charged with, of processes that live and could say so."""
        world = self.world
        if world.over:
            return
        world.loop.after(_POISON_S, self._look_for_false_deaths)
        charged = {}
        for case in read_ledger(self._seen).cases:
            for death in case.died:
                led_by = self.leaders.get(death.configuration)
                # What was set aside is not taken back.
                if led_by is None or case.closed or not self._may_speak(led_by):
                    continue
                key = case.rpc_id, death.configuration
                since = charged[key] = self._charged.get(key, world.loop.now)
                if world.loop.now - since > _SPOKEN_S:
                    world.problems.append(
                        f"poison: {case.rpc_id} is charged with the death of "
                        f"{led_by.process.name}, which led {death.configuration} and lives"
                    )
                    # Told once.
                    del self.leaders[death.configuration]
        self._charged = charged

    def _may_speak(self, replica: Replica) -> bool:
        """Whether a replica runs, reaches the engine, and runs no handler of an earlier time."""
        now = self.world.loop.now
        unreached = max(self.stalled_until[replica.index], self.lossy_until[replica.index])
        return (
            replica.process.alive
            and max(replica.process.stopped_until, unreached) <= now
            and not replica.store.executing()
        )

    def trimmed(self) -> int:
        """Return through which LSN the log was trimmed."""
        return self._seen.first() - 1

    def number_ended(self) -> None:
        """Stop all witnesses, which forget everything: as an operator may, from here on."""
        if self.random.random() < 0.5:
            for witness in self._witnesses.values():
                witness.restart(0.02 + 0.5 * self.random.random(), keeps_journal=False)

    def strike(self, planned: PlannedFault, server: Server) -> None:
        """Take a fault of the log engine, or of a witness."""
        fault, until = planned.fault, self.world.loop.now + planned.seconds
        struck = range(self._setting.servers) if planned.target == ALL else (server.index,)
        if fault is Fault.STORE_LOSS:
            self.loss = planned.share * 0.3
            for index in struck:
                self.lossy_until[index] = until
        elif fault is Fault.STORE_STALL:
            for index in struck:
                self.stalled_until[index] = until
        elif fault is Fault.WITNESS_CRASH:
            for witness in self._witnesses.values():
                # Another group was given the same one.
                witness.is_claimed()
            mortal = [each for each in self._witnesses.values() if self._may_forget(each)]
            if mortal:
                witness = mortal[planned.target % len(mortal)]
                witness.restart(planned.seconds, keeps_journal=planned.share > 0.3)
        else:
            self._operate(planned, server)

    def _operate(self, planned: PlannedFault, server: Server) -> None:
        """Do what an operator asks a leader for."""
        replica = self._replicas[server.index]
        leading = replica.leading
        if not server.leads() or leading is None:
            return
        server.count(planned.fault)
        operator = Operator(self.world, self._setting.servers)
        if planned.fault is Fault.WITNESS_CHANGE:
            wanted = self._draw_list(planned, leading.listed)
            operator.change_witnesses(server.index, wanted, leading.configuration)
        elif planned.fault is Fault.TRANSFER:
            to = self.random.randrange(self._setting.servers)
            operator.transfer(server.index, f"server{to}" if planned.share > 0.3 else "")
        elif planned.fault is Fault.SNAPSHOT:
            replica.snapshot()

    def _draw_list(self, planned: PlannedFault, present: WitnessList | None) -> tuple[str, ...]:
        names = list(self._witnesses)
        count = self.random.randint(0 if planned.share < 0.3 else 1, len(names))
        drawn = self.random.sample(names, count)
        if planned.share > 0.3 and present is not None:
            # Newcomers first: it is the first one that a recovery asks.
            drawn.sort(key=present.witnesses.__contains__)
        return tuple(drawn)

    def _may_forget(self, witness: Witness) -> bool:
        """Whether a witness may die: a configuration survives all of its own but one.

        One that is listed dies only if another one there remembers what it recorded.
        """
        if witness is self._spared:
            return False
        data = self._seen.metadata(LIST_KEY)
        if data is None:
            return True
        found = witness_list_from_bytes(data)
        listed = [self._witnesses[name] for name in found.witnesses]
        return witness not in listed or any(
            each is not witness and each.remembers(found.configuration) for each in listed
        )

    def _archive(self) -> None:
        self._appended += self._seen.read(len(self._appended))

    def heal(self) -> None:
        """Have everything answer from now on."""
        self.lossy_until = [0.0] * self._setting.servers
        self.stalled_until = [0.0] * self._setting.servers

    def close(self) -> None:
        """Do nothing."""

    def finish(self, world: World) -> None:
        """Record every operation in the log as an effect, and what is there in the end.

        That is what a new replica finds: the snapshot, and what was appended after it.
        """
        history = world.history
        machine = Machine()
        effects: dict[int, list[tuple[str, int]]] = {}
        active = 0
        for kept in self._appended:
            entry = entry_from_bytes(kept.lsn, kept.body)
            if isinstance(entry, ApplicationVersion):
                active = entry.version
            elif (
                isinstance(entry, Operation)
                and not entry.refusal
                and entry.application_version < active
            ):
                world.problems.append(f"version: LSN {kept.lsn} is of one before {active}")
        for operation in _operations(self._appended):
            machine.application_version = operation.application_version
            machine.replay(operation)
            if machine.changed is not None:
                changed, version = machine.changed
                effects.setdefault(changed.call, []).append((changed.account, version))
        history.place_effects(effects)
        found, begins_at = Machine(), 0
        # The oldest one that may still lead.
        found.application_version = active
        snapshot = self._seen.load_snapshot()
        if snapshot is not None:
            begins_at = snapshot.lsn
            found.restore(snapshot_from_chunks(snapshot.chunks)[1])
        for operation in _operations(self._appended[begins_at:]):
            # A wrong snapshot shows as what is there, not as an answer that differs.
            found.execute(decode(operation.request))
        for account, (version, total) in found.accounts.items():
            history.final(account, version, total)


def _operations(entries: Iterable[LogEntry]) -> Iterator[Operation]:
    for kept in entries:
        entry = entry_from_bytes(kept.lsn, kept.body)
        if isinstance(entry, Operation) and not entry.refusal:
            yield entry
