"""A group as it is deployed: replicas, witnesses, one log."""

from __future__ import annotations

from random import Random

from chaos.sim.faults import ALL, Fault, PlannedFault
from chaos.sim.group.replica import Replica
from chaos.sim.loop import Process
from chaos.sim.machine import Machine
from chaos.sim.schedule import Setting
from chaos.sim.server import Server
from chaos.sim.witness import Witness
from chaos.sim.world import World
from curp.core.entries import Operation
from curp.log.memory import MemoryLog
from curp.replica.leading import LIST_KEY
from curp.wire import entry_from_bytes, witness_list_from_bytes

__all__ = ["GroupDeployment"]


class GroupDeployment:
    """Three replicas, three witnesses, one log."""

    def __init__(self, world: World, setting: Setting, random: Random) -> None:
        self.world = world
        self.random = random
        self._setting = setting
        self._lives = 0
        self.log = MemoryLog(clock=lambda: world.loop.now)
        # By replica: one of them may be cut off from the engine, and from nobody else.
        self.lossy_until = [0.0] * setting.servers
        self.stalled_until = [0.0] * setting.servers
        self.loss = 0.0
        self.witness_names = tuple(f"witness{index}:1" for index in range(setting.witnesses or 0))
        self._witnesses = {
            name: Witness(world, index, random) for index, name in enumerate(self.witness_names)
        }
        # Never restarts: a group waits for ever for one that remembers.
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
        return Replica(process, index, self._setting, self)

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
            spared = self._spared_now()
            mortal = [each for each in self._witnesses.values() if each is not spared]
            witness = mortal[planned.target % len(mortal)]
            witness.restart(planned.seconds, keeps_journal=planned.share > 0.3)

    def _spared_now(self) -> Witness:
        """Return who must not forget: a configuration survives all its witnesses but one."""
        data = self.log.metadata.get(LIST_KEY)
        listed = () if data is None else witness_list_from_bytes(data).witnesses
        if not listed or any(self._witnesses[name] is self._spared for name in listed):
            return self._spared
        return self._witnesses[listed[0]]

    def heal(self) -> None:
        """Have everything answer from now on."""
        self.lossy_until = [0.0] * self._setting.servers
        self.stalled_until = [0.0] * self._setting.servers

    def close(self) -> None:
        """Nothing to let go of."""

    def finish(self, world: World) -> None:
        """Record every operation in the log as an effect, and what they add up to."""
        history = world.history
        machine = Machine()
        effects: dict[int, list[tuple[str, int]]] = {}
        for kept in self.log.kept:
            entry = entry_from_bytes(kept.entry.lsn, kept.entry.body)
            if isinstance(entry, Operation) and not entry.refusal:
                machine.replay(entry)
                if machine.changed is not None:
                    operation, version = machine.changed
                    effects.setdefault(operation.call, []).append((operation.account, version))
        history.place_effects(effects)
        for account, (version, total) in machine.accounts.items():
            history.final(account, version, total)
