"""A CURP group: the product's store, recovery and witnesses, over a log in memory.

The rules are ``curp.core``'s, ``GroupStore``'s and ``WitnessDesk``'s. Here stands what
is a thread or a socket in ``curp.replica``: when a batch is appended, a lease renewed, a
witness asked.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import grpc

from chaos.sim.faults import ALL, Fault, PlannedFault, Point
from chaos.sim.loop import Process, Timer
from chaos.sim.machine import Machine
from chaos.sim.network import Rpc
from chaos.sim.schedule import Setting
from chaos.sim.server import POLICIES, Server
from chaos.sim.witness import Witness
from chaos.sim.world import World
from curp.core.collection import Collectable, Collection
from curp.core.entries import Operation
from curp.core.leader import Batch, Leader, LeaderBounds
from curp.core.read_lease import ReadLease
from curp.core.recovery import (
    Append,
    Freeze,
    Publish,
    ReadToEnd,
    ReadWitnessList,
    Recovered,
    Run,
    StartWitness,
    TakeNumber,
    Wait,
    WitnessedCall,
    WitnessList,
    recover,
)
from curp.core.state import GroupState, Witnessed
from curp.core.witness_table import WitnessVerdict
from curp.log.engine import LogEngine, NewEntry
from curp.log.errors import Deposed as NumberTaken
from curp.log.errors import EngineUnavailable, LeaseHeld, LogError
from curp.log.memory import MemoryLog, Moment
from curp.replica.authority import GroupAuthority
from curp.replica.engine import GroupEngine
from curp.replica.group_store import Arrival, GroupStore
from curp.replica.leading import LIST_KEY
from curp.replica.lease_storage import LogLeaseStorage
from curp.replica.witnesses import read_held
from curp.v1 import curp_pb2 as pb
from curp.wire import (
    entry_from_bytes,
    entry_to_bytes,
    secrets_to_message,
    witness_list_from_bytes,
    witness_list_to_bytes,
)
from lease_server.authority import LeaseAuthority
from lease_server.errors import LeaseError, StorageUnavailable
from rifl.client.answers import FinalStatus
from rifl.core.call import Call
from rifl.core.client_table import Attempt
from rifl.core.errors import NotLeader, RiflError
from rifl.core.later import Later
from rifl.core.policy import KeyBounds, MethodPolicy
from rifl.core.record import CompletionRecord
from rifl.core.serving import HandlerResult, execute

__all__ = ["GROUP", "GroupDeployment", "Replica"]

GROUP = "group"
_OK = FinalStatus(grpc.StatusCode.OK)
_TERM_S = 1.0
_DRIFT = 0.2
_LOOK_S = 0.1
_STUCK_POLICY = MethodPolicy()


class _Storage(LogLeaseStorage):
    """Where the product blocks until an entry is in the log, it is appended at once."""

    def __init__(self, store: GroupStore, state: GroupState, flush: Callable[[], None]) -> None:
        super().__init__(store, state)
        self._flush = flush

    def _write(self, entry: Any) -> None:
        try:
            pending = self._store.log(entry)
            self._flush()
        except RiflError as error:
            raise StorageUnavailable(str(error)) from error
        if not pending.done or pending.error is not None:
            raise StorageUnavailable("it is not in the log yet")


class Replica:
    """One life of one replica: follows, takes over, leads, steps down."""

    def __init__(
        self, process: Process, index: int, setting: Setting, deployment: GroupDeployment
    ) -> None:
        self.process = process
        self.deployment = deployment
        self.index = index
        self.name = f"server{index}/{deployment.lives()}"
        self.address = f"server{index}:1"
        self._setting = setting
        self.world = deployment.world
        self.random = deployment.random
        self.log: LogEngine = deployment.log.engine(self._strike)
        self.machine = Machine()
        self.authority = GroupAuthority(setting.term_s)
        self.store = GroupStore(boottime=process.clock)
        self.store.bind(
            self.authority,
            POLICIES,
            clock=process.clock,
            window=2 * setting.window + setting.max_unsynced,
            key_bounds=KeyBounds(retention_s=None),
        )
        self.store.work = _Work(self._work)  # type: ignore[assignment]  # one thread waits for none
        self._appending: tuple[Batch, bytes] | None = None
        self._timer: Timer | None = None
        self._term = 0
        self._number = 0
        self.listed: WitnessList | None = None
        self.read_lease = ReadLease(_TERM_S, drift=_DRIFT)
        self._collection = Collection(())
        self._collecting = False
        self._begun = False
        self.state = self.store.state
        process.after(0.01 + 0.05 * self.random.random(), self._follow, self._term)

    def engine(self, *arguments: Any, **keywords: Any) -> GroupEngine:
        """Make the engine by which calls arrive."""
        return GroupEngine(self.store, self.machine, *arguments, **keywords)  # type: ignore[arg-type]

    def commit(self, attempt: Attempt, record: CompletionRecord) -> None:
        """No method of a group has a transaction of its own."""
        raise NotImplementedError

    def crash(self, *, flushed: bool) -> None:
        """The log is elsewhere: everything here is gone; of an append, nobody knows."""
        if self._appending is not None and flushed:
            batch, append_id = self._appending
            try:
                self._engine_append(batch, append_id)
            except LogError:
                return

    def serve_group(self, server: Server, rpc: Rpc) -> None:
        """Answer a request of ``curp.v1.Group``."""
        network = self.world.network
        if rpc.method.endswith("/Configuration"):
            network.reply(rpc, _OK, self._configuration().SerializeToString())
            return
        request = pb.SyncRequest.FromString(rpc.request)
        key = request.key if request.WhichOneof("identity") == "key" else None
        call = Call(request.client_id, request.token, None if key is not None else request.seq, key)
        try:
            self.authority.check(call.client_id, call.token)
            self._sync(server, rpc, request.configuration, call)
        except LeaseError as error:
            server.refuse(rpc, NotLeader(str(error)))
        except RiflError as error:
            server.refuse(rpc, error)

    def _sync(self, server: Server, rpc: Rpc, configuration: int, call: Call) -> None:
        listed = self.listed
        if listed is None or not self.store.serving:
            server.refuse(rpc, self.store.not_leader())
            return
        verdict: int = pb.SyncReply.OTHER_CONFIGURATION
        if configuration == listed.configuration:
            try:
                found = self.store.call_synced(call)
            except RiflError as error:
                server.refuse(rpc, error)
                return
            if not isinstance(found, bool):
                found.add_callback(
                    lambda _: self.process.after(0.0, self._sync, server, rpc, configuration, call)
                )
                return
            verdict = pb.SyncReply.SYNCED if found else pb.SyncReply.NOT_KNOWN
        reply = pb.SyncReply(verdict=verdict)  # type: ignore[arg-type]  # an enum's number
        self.world.network.reply(rpc, _OK, reply.SerializeToString())

    def _configuration(self) -> pb.GroupConfiguration:
        found = pb.GroupConfiguration(group=GROUP, methods=self.machine.conflicts())
        listed = self.listed
        if listed is not None and self.store.serving:
            found.configuration = listed.configuration
            found.leader = self.address
            found.witnesses.extend(listed.witnesses)
            return found
        try:
            data = self.log.metadata(LIST_KEY)
        except EngineUnavailable:
            return found
        if data is not None:
            known = witness_list_from_bytes(data)
            if known.serving:
                found.configuration = known.configuration
                found.witnesses.extend(known.witnesses)
        return found

    def close(self) -> None:
        """End the leadership, so that nobody need wait for its lease."""
        if self.store.leader is not None:
            try:
                self._flush()
                self.log.end_leadership(self._number)
            except LogError:
                return

    # -- faults of the engine --------------------------------------------------------------

    def _strike(self, name: str, moment: Moment) -> None:
        deployment = self.deployment
        now = self.world.loop.now
        if deployment.stalled_until[self.index] > now:
            self.world.coverage.hit(Fault.STORE_STALL, Point.OTHER_REQUEST)
            raise EngineUnavailable("timed out")
        if deployment.lossy_until[self.index] > now and self.random.random() < deployment.loss:
            point = Point.APPEND if name == "append" else Point.OTHER_REQUEST
            self.world.coverage.hit(Fault.STORE_LOSS, point)
            raise EngineUnavailable(f"{moment.value} {name}")

    # -- following ---------------------------------------------------------------------------

    def _follow(self, term: int) -> None:
        if term != self._term:
            return
        again = _LOOK_S * (0.5 + self.random.random())
        try:
            if self.store.executing():
                # Handlers of an earlier leadership change the services' state.
                self.process.after(0.01, self._follow, term)
                return
            if not self._begun:
                self.machine.reset()
                self.state = self.store.new_state()
                self.store.follow(self.state)
                self._begun = True
            while self._apply_more():
                pass
            leadership = self.log.leadership()
            if leadership is not None and leadership.expires_in_s > 0:
                own = leadership.replica == self.name
                self.store.name_leader("" if own else leadership.address)
            else:
                self.store.name_leader("")
                self._take_over()
                return
        except EngineUnavailable:
            again = 0.1
        self.process.after(again, self._follow, term)

    def _apply_more(self) -> bool:
        entries = self.log.read(self.state.applied, limit=2000)
        for found in entries:
            entry = entry_from_bytes(found.lsn, found.body)
            if isinstance(entry, Operation) and not entry.refusal:
                self.machine.replay(entry)
            self.store.apply(found.lsn, entry)
        return bool(entries)

    # -- taking over (invariant 5) -------------------------------------------------------------

    def _take_over(self) -> None:
        self._term += 1
        sent_at = self.process.clock()
        try:
            self._number = self.log.take_leadership(self.name, self.address, term_s=_TERM_S)
        except (LeaseHeld, EngineUnavailable):
            self.process.after(_LOOK_S, self._follow, self._term)
            return
        self.world.trace(self.process.name, f"takes over under number {self._number}")
        self.read_lease = ReadLease(_TERM_S, drift=_DRIFT)
        self.read_lease.renewed(sent_at)
        self.process.after(_TERM_S / 4, self._renew, self._term)
        rule = recover(
            self.name,
            self.state,
            self.deployment.witness_names,
            self.store.now,
            secret=self.random.randbytes(32),
        )
        self._recover(self._term, rule, None)

    def _recover(self, term: int, rule: Any, answer: Any) -> None:
        if term != self._term:
            return
        try:
            step = rule.send(answer)
        except StopIteration as stop:
            self._lead(stop.value)
            return
        self._carry_out(term, rule, step)

    def _carry_out(self, term: int, rule: Any, step: Any) -> None:
        if term != self._term:
            return
        go_on = lambda answer: self._recover(term, rule, answer)  # noqa: E731
        try:
            if isinstance(step, TakeNumber):
                answer: Any = self._number
            elif isinstance(step, ReadWitnessList):
                data = self.log.metadata(LIST_KEY)
                answer = None if data is None else witness_list_from_bytes(data)
            elif isinstance(step, ReadToEnd):
                while self._apply_more():
                    pass
                answer = self.state.applied
            elif isinstance(step, Freeze):
                self.deployment.witness(step.address).freeze(
                    self.process, GROUP, step.configuration, self._held(go_on)
                )
                return
            elif isinstance(step, StartWitness):
                self.deployment.witness(step.address).start(
                    self.process,
                    GROUP,
                    step.configuration,
                    secrets_to_message(self.state.secrets),
                    self.machine.conflicts(),
                    go_on,
                )
                return
            elif isinstance(step, Wait):
                self.process.after(step.seconds, go_on, None)
                return
            elif isinstance(step, Run):
                answer = self.machine.run(step.witnessed.call, step.witnessed.request)
            elif isinstance(step, Append):
                answer = self._append_recovered(step)
            elif isinstance(step, Publish):
                self.log.put_metadata(
                    {LIST_KEY: witness_list_to_bytes(step.witnesses)},
                    configuration=step.witnesses.configuration,
                )
                answer = None
            else:
                raise AssertionError(step)
        except EngineUnavailable:
            # The same step again: the recovery has not moved.
            self.process.after(0.1, self._carry_out, term, rule, step)
            return
        except LogError as error:
            self._step_down(error)
            return
        self.process.after(0.0002, go_on, answer)

    def _held(self, go_on: Callable[[Any], None]) -> Callable[[Any], None]:
        def frozen(messages: list[Any] | None) -> None:
            if messages is not None and self.store.fault is not None:
                self.store.fault("frozen")
            go_on(None if messages is None else self._read(messages))

        return frozen

    def _read(self, messages: list[Any]) -> list[WitnessedCall]:
        return read_held(messages, self.machine)  # type: ignore[arg-type]  # stands for services

    def _append_recovered(self, step: Append) -> int:
        # Named by what it is, so that it is recognised when it is asked again.
        append_id = b"recovery%08d" % step.witnesses.configuration
        return self.log.append(
            [NewEntry(entry_to_bytes(entry)) for entry in step.entries],
            configuration=step.witnesses.configuration,
            expected_tail=step.expected_tail,
            append_id=append_id,
            metadata={LIST_KEY: witness_list_to_bytes(step.witnesses)},
        )

    # -- leading ---------------------------------------------------------------------------------

    def _lead(self, found: Recovered) -> None:
        witnesses = found.witnesses
        self.world.trace(
            self.process.name,
            f"leads {witnesses.configuration} with {','.join(witnesses.witnesses)}; froze "
            f"{found.frozen or 'nobody'}, held {found.held}, replayed {found.replayed}",
        )
        setting = self._setting
        leader = Leader(
            witnesses.configuration,
            found.tail,
            witnessed=bool(witnesses.witnesses),
            bounds=LeaderBounds(
                batch_entries=setting.batch_entries,
                batch_delay_s=setting.batch_delay_s,
                max_unsynced=setting.max_unsynced,
            ),
        )
        self.listed = witnesses
        self._collection = Collection(witnesses.witnesses)
        self.store.lead(leader, self.read_lease)
        self._work()
        storage = _Storage(self.store, self.state, self._flush)
        self.store.leases = storage
        self.store.on_synced = self._synced
        try:
            authority = LeaseAuthority(
                storage,
                term_s=setting.term_s,
                clock=self.process.clock,
                wall_clock=self.process.wall_clock,
                id_block=16,
            )
        except StorageUnavailable as error:
            self._step_down(error)
            return
        self.authority.lead(authority)
        self.store.open(authority)

    def _renew(self, term: int) -> None:
        if term == self._term:
            # A request and its reply: what is asked of a leader that was suspended may
            # be answered before it learns that it leads no more.
            delay_s = 0.0005 + 0.002 * self.random.random()
            self.process.after(delay_s, self._renewed, term, self.process.clock())

    def _renewed(self, term: int, sent_at: float) -> None:
        if term != self._term:
            return
        try:
            self.log.renew_leadership(self._number, term_s=_TERM_S)
            self.read_lease.renewed(sent_at)
        except EngineUnavailable:
            pass
        except LogError as error:
            self._step_down(error)
            return
        self.process.after(_TERM_S / 4, self._renew, term)

    def _step_down(self, error: Exception) -> None:
        self.world.trace(self.process.name, f"steps down: {error}")
        self._term += 1
        self._appending = None
        self.read_lease.end()
        self.authority.lead(None)
        self.store.on_synced = None
        self.store.step_down()
        self._begun = False
        self.listed = None
        self.process.after(_LOOK_S, self._follow, self._term)

    # -- appending -------------------------------------------------------------------------------

    def _work(self) -> None:
        """Something may be due: the product's appender would be woken."""
        leader = self.store.leader
        if leader is None or self._appending is not None:
            return
        due_in_s = leader.due_in(self.process.clock())
        self.store.appender_rests(due_in_s)
        if due_in_s is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.process.after(due_in_s, self._take, self._term)

    def _take(self, term: int) -> None:
        self._timer = None
        leader = self.store.leader
        if term != self._term or leader is None or self._appending is not None:
            return
        if leader.due_in(self.process.clock()) is None:
            self._work()
            return
        self._appending = leader.take(), self.random.randbytes(16)
        self.store.appender_looks()
        self.process.after(0.0003 + 0.001 * self.random.random(), self._append, term)

    def _append(self, term: int) -> None:
        if term != self._term or self._appending is None:
            return
        batch, append_id = self._appending
        try:
            tail = self._engine_append(batch, append_id)
        except EngineUnavailable:
            self.process.after(0.05, self._append, term)
            return
        except LogError as error:
            self._step_down(error)
            return
        self._appending = None
        self.store.committed_batch(batch, tail)
        self._work()

    def _engine_append(self, batch: Batch, append_id: bytes) -> int:
        return self.log.append(
            [NewEntry(placed.what.body) for placed in batch.placed],
            configuration=self._number,
            expected_tail=batch.expected_tail,
            append_id=append_id,
        )

    def _flush(self) -> None:
        """Append everything that waits, now, if the engine answers."""
        term = self._term
        while term == self._term and self.store.leader is not None:
            if self._appending is None:
                if self.store.leader.due_in(self.process.clock()) is None:
                    self._work()
                    return
                self._appending = self.store.leader.take(), self.random.randbytes(16)
            batch, append_id = self._appending
            try:
                tail = self._engine_append(batch, append_id)
            except NumberTaken as error:
                self._step_down(error)
                return
            except EngineUnavailable:
                self.process.after(0.05, self._append, term)
                return
            self._appending = None
            self.store.committed_batch(batch, tail)

    # -- collecting (invariant 12) ---------------------------------------------------------------

    def _synced(self, collectable: list[Collectable]) -> None:
        for each in collectable:
            self._collection.synced(each)
        if not self._collecting:
            self._collecting = True
            self.process.after(0.02, self._collect, self._term)

    def _collect(self, term: int) -> None:
        self._collecting = False
        if term != self._term or self.listed is None:
            return
        for name in self._collection.witnesses:
            taken = self._collection.take(name, 1000)
            if taken:
                self.deployment.witness(name).collect(
                    self.process,
                    GROUP,
                    self.listed.configuration,
                    taken,
                    lambda reply, name=name, taken=taken: self._collected(  # type: ignore[misc]
                        term, name, taken, reply
                    ),
                )

    def _collected(self, term: int, name: str, taken: list[Collectable], reply: Any) -> None:
        if term != self._term:
            return
        if reply is None:
            self._collection.not_told(name, taken)
            if not self._collecting:
                self._collecting = True
                self.process.after(0.2, self._collect, term)
            return
        verdict, stuck = reply
        if verdict is not WitnessVerdict.ACCEPTED:
            return
        for witnessed in self._read(stuck):
            self._stuck(witnessed)

    def _stuck(self, witnessed: WitnessedCall) -> None:
        call = witnessed.call
        found = self.state.witnessed(call)
        self.world.trace(self.process.name, f"{call.rpc_id} is stuck: {found.value}")
        if found is Witnessed.RUNNING:
            return
        if found is not Witnessed.FRESH:
            self._synced([Collectable(call.client_id, call.seq, call.key, witnessed.keys)])
            return
        call.configuration = self.listed.configuration  # type: ignore[union-attr]
        call.extra = Arrival(witnessed.request, witnessed.keys, call.configuration, 1, ())
        try:
            decision = self.store.claim(call, _STUCK_POLICY)
        except RiflError:
            return
        attempt = decision.attempt
        if attempt is not None and not attempt.ended and attempt.call is call:
            self._drive(execute(self.store, attempt), witnessed, None)

    def _drive(self, steps: Any, witnessed: WitnessedCall, value: Any) -> None:
        try:
            while True:
                step = steps.send(value)
                value = None
                if isinstance(step, Attempt):
                    record = self.machine.run(step.call, witnessed.request)
                    value = HandlerResult(record)
                elif isinstance(step, Later):
                    step.add_callback(  # type: ignore[attr-defined]
                        lambda done: self._resume(steps, witnessed, done)
                    )
                    return
                else:
                    return
        except (StopIteration, RiflError):
            return

    def _resume(self, steps: Any, witnessed: WitnessedCall, done: Any) -> None:
        if done.error is None:
            self.process.after(0.0, self._drive, steps, witnessed, done.result)


class _Work:
    """Stands for the store's condition: whoever is notified looks at once."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None

    def notify_all(self) -> None:
        """Look, since something changed."""
        self._look()


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
