"""A server process: the product's engine, authority and store, over simulated media."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Protocol

import grpc

from chaos.check.history import read_value
from chaos.sim.batch_server import BatchHandlers, Fetched
from chaos.sim.disk import was_written
from chaos.sim.faults import Fault, Point
from chaos.sim.loop import Process
from chaos.sim.machine import Killed
from chaos.sim.network import Rpc
from chaos.sim.service import METHODS, Operation, decode
from chaos.sim.shell import Shell, Task, serve_fast
from chaos.sim.stream_network import StreamRpc
from chaos.sim.stream_server import StreamCalls
from chaos.sim.world import World
from curp._replica.group_store import GroupStore
from lease_server._authority import Authority
from lease_server._errors import LeaseError
from lease_server.v1 import lease_server_pb2 as pb
from rifl._client.answers import FinalStatus
from rifl._grpc.codes import STATUS_CODES
from rifl._grpc.status import DETAILS_KEY, details_bin
from rifl._leases.requests import LeaseRequests, Terms
from rifl._leases.service import status_of
from rifl._server.batches import Batch
from rifl._server.engine import Engine, KeysFrom
from rifl._server.outcomes_service import RESOLUTION, resolution_call, resolution_reply
from rifl._server.reply import Reply
from rifl._server.sweeper import sweep
from rifl._stores.base import Store
from rifl._stores.errors import StoreError
from rifl._stores.shared.backend import BackendError
from rifl._stores.sqlite.store import SqliteStore
from rifl._wire.labels import OUTCOME_KEY, without_labels
from rifl.core._serving.batching import BatchAnswer, serve_batch
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy
from rifl.core._serving.serving import Answer, HandlerResult, resolve
from rifl.core._shared.call import Call
from rifl.core._shared.errors import LeaseExpired, RiflError
from rifl.core._shared.outcome import Outcome
from rifl.core._shared.record import CompletionRecord, Metadata

__all__ = ["POLICIES", "Opened", "Server"]

_OK = FinalStatus(grpc.StatusCode.OK)
# What a stranger shows for a session.
_STRANGERS = b"not what it opens by"
_ABORTED = CompletionRecord(code=9, details="the account does not allow it")
_RAISED = CompletionRecord(code=2, details="Exception calling application: sim")
_UNRECORDED = CompletionRecord(code=14, details="come back later")
_SWEEPS_PER_TERM = 10
_REPEATABLE = "/sim.Accounts/Touch"
# After a handler ended its process.
_AGAIN_S = 0.1
# By the names that a group's store gives them.
_PASSED = {
    "answered": Point.ANSWERED_FIRST,
    "reply": Point.LOGGED,
    "frozen": Point.RECOVERING,
    "numbered": Point.NUMBERED,
    "relisted": Point.RELISTED,
    "handing-over": Point.HANDING_OVER,
    "saved": Point.SAVED,
    "trimmed": Point.TRIMMED,
    "renewing": Point.RENEWING,
    "renewed": Point.RENEWED,
}
_IN_THE_HANDLER = (Point.HANDLER, Point.EFFECT)
# Where a process that is dead cannot be said to be.
_LEADERS_ALONE = (
    Point.RECOVERING,
    Point.NUMBERED,
    Point.RELISTED,
    Point.HANDING_OVER,
    Point.SAVED,
    Point.TRIMMED,
    Point.RENEWING,
    Point.RENEWED,
)
POLICIES = MethodPolicies(METHODS, None)
# What an upstream told the handler of a call of its own, under another identity.
_UPSTREAMS: Metadata = (
    (
        DETAILS_KEY,
        details_bin(
            grpc.StatusCode.FAILED_PRECONDITION, "LEASE_EXPIRED", "the upstream's", {"rpc": "7/7"}
        ),
    ),
    (OUTCOME_KEY, "unknown"),
)


class Opened(Protocol):
    """What a deployment gives a new process: its store, and who knows about leases."""

    @property
    def store(self) -> Store:
        """Where its records live."""

    @property
    def authority(self) -> Authority:
        """Who knows about leases."""

    def commit(self, attempt: Attempt, record: CompletionRecord) -> Any:
        """Commit an atomic handler's transaction with the record; a ``Later`` or None."""

    def crash(self, *, flushed: bool) -> None:
        """Leave what the death of the process leaves."""

    def close(self) -> None:
        """Close in order."""


class Server:
    """One server, through all its lives."""

    def __init__(
        self,
        world: World,
        index: int,
        random: Random,
        open_: Callable[[Process, int], Opened],
        *,
        rate: float,
        max_waiters: int,
        window: int,
    ) -> None:
        self.world = world
        self.index = index
        self.name = f"server{index}"
        self.rpcs: dict[Rpc, None] = {}
        self.lives = 0
        self._random = random.random
        self._open = open_
        self._rate = rate
        self._max_waiters = max_waiters
        self._window = window
        self.wall_offset_s = 0.0
        # Clients whose handlers the last crash caught: they are known, and have a full term.
        self.caught: set[int] = set()
        self._known_until = 0.0
        self._term_s = 0.0
        # Clients that had a handler run here, in any life.
        self._met: set[int] = set()
        self.process = Process(world.loop, self.name)
        self.process.alive = False
        self._opened: Opened
        self._shell: Shell
        self._engine: Engine

    # -- life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life; what cannot start tries again a second later."""
        world = self.world
        if self.process.alive or world.over:
            return
        self.lives += 1
        process = Process(world.loop, self.name, rate=self._rate, wall_offset_s=self.wall_offset_s)
        try:
            self._opened = self._open(process, self.index)
        except (StoreError, LeaseError, BackendError) as error:
            world.trace(self.name, f"cannot start: {error}")
            world.loop.after(1.0, self.start)
            return
        self.process = process
        machine = getattr(self._opened, "machine", None)
        if machine is not None:
            machine.die = self._killed
        store, authority = self._opened.store, self._opened.authority
        make_engine: Any = getattr(self._opened, "engine", partial(Engine, store))
        self._engine = make_engine(
            authority,
            POLICIES,
            bounds=Bounds(max_waiters=self._max_waiters, max_aio_waiters=0, max_wait_s=10.0),
            peer_property=None,
            keys_from=KeysFrom.ANYONE,
        )
        self._shell = Shell(process, self._engine)
        if hasattr(store, "fault"):
            store.fault = self._passed
        terms = Terms(
            deduplicated=POLICIES.deduplicated(),
            not_deduplicated=POLICIES.not_deduplicated(),
            window=self._window,
        )
        self._lease_requests = LeaseRequests(authority, terms)
        self._answer_lease: dict[str, Callable[[bytes, bytes], Any]] = {
            "Grant": self._lease_requests.grant,
            "Renew": self._lease_requests.renew,
            "Release": self._lease_requests.release,
            "OpenSession": self._lease_requests.open_session,
            "CloseSession": self._lease_requests.close_session,
        }
        self._streams = StreamCalls(
            world=world,
            name=self.name,
            process=process,
            shell=self._shell,
            engine=self._engine,
            context=_Context,
            policy=_policy_of,
            deadline=self._deadline,
            refuse=self._refuse,
            send=self._send,
            effect=self._effect,
        )
        self.rpcs = {}
        self._known_until = process.clock() + authority.term_s
        self._term_s = authority.term_s
        world.network.hosts[self.index] = self
        if self.lives > 1 and self._random() < 0.5:
            world.network.send_again(self.index)
        world.trace(self.name, f"started, life {self.lives}")
        process.after(authority.term_s / _SWEEPS_PER_TERM, self._sweep)

    def overheard(self, session: str) -> None:
        """Be asked by a stranger, who knows a session's name, for its id and for its end."""
        if not self.process.alive:
            return
        closing = pb.CloseSessionRequest(name=session, secret=_STRANGERS)
        opening = pb.OpenSessionRequest(name=session, secret=_STRANGERS)
        try:
            self._answer_lease["CloseSession"](closing.SerializeToString(), b"")
        except LeaseError as error:
            if error.reason != "NOT_YOURS":
                # Nobody opened it yet, or it is forgotten: the stranger may have it.
                return
        else:
            self.world.broken("stranger", PermissionError(f"closed {session}"))
        try:
            self._answer_lease["OpenSession"](opening.SerializeToString(), b"")
        except LeaseError:
            return
        self.world.broken("stranger", PermissionError(f"opened {session}"))

    def crash(self, fault: Fault = Fault.CRASH) -> None:
        """End at once."""
        if not self.process.alive:
            return
        self.count(fault)
        self.world.trace(self.name, f"dies with {len(self._shell.tasks)} calls")
        self.caught = {
            task.attempt.call.client_id
            for task in self._shell.tasks
            if task.point in _IN_THE_HANDLER and task.attempt is not None
        }
        self.process.kill()
        self.world.network.hosts.pop(self.index, None)
        self._opened.crash(flushed=self._random() < 0.5)
        self.world.network.host_died(self)

    def _killed(self) -> None:
        """Die of a handler; somebody starts it again soon."""
        self.crash()
        self.world.loop.after(_AGAIN_S, self.start)

    def aim(self, point: Point, strike: Callable[[], None]) -> None:
        """Have something strike when a call is next at a point, at once if one is."""
        if not self.process.alive:
            if point not in _LEADERS_ALONE:
                strike()
        elif any(task.point is point for task in self._shell.tasks):
            strike()
        else:
            self._shell.aims.setdefault(point, []).append(strike)

    def leads(self) -> bool:
        """Whether it leads a group, as far as it knows."""
        return self.process.alive and getattr(self._opened.store, "leader", None) is not None

    def _passed(self, point: str) -> None:
        if point in _PASSED:
            self._shell.reach(_PASSED[point])

    def stop(self, seconds: float) -> None:
        """Be suspended."""
        if self.process.alive:
            self.count(Fault.STOP)
            self.world.trace(self.name, f"stopped for {seconds:.3f} s")
            self.process.stop(seconds)

    def drain(self) -> None:
        """Stop in order: refuse new calls, let the others end, close."""
        if not self.process.alive:
            return
        self.count(Fault.DRAIN)
        self.world.trace(self.name, "drains")
        self._opened.store.refuse_new(True)
        self.process.after(0.5, self._closed)

    def rotate_secret(self) -> None:
        """Make a new secret for tokens."""
        if self.process.alive:
            try:
                self._opened.authority.rotate_secret()
            except LeaseError as error:
                self.world.trace(self.name, f"secret not rotated: {error}")
            else:
                self.world.coverage.hit(Fault.ROTATE_SECRET, Point.IDLE)

    def jump(self, seconds: float) -> None:
        """Have the wall clock set."""
        self.wall_offset_s += seconds
        self.process.wall_offset_s = self.wall_offset_s
        self.world.coverage.hit(Fault.WALL_JUMP, Point.IDLE)
        self.world.trace(self.name, f"wall clock jumps by {seconds:.0f} s")

    def restart(self) -> None:
        """Die and begin anew, as somebody does who finds it stopped."""
        if self.process.alive:
            self.crash()
            self.start()

    def heal(self) -> None:
        """Have it run, whatever became of it; no fault that waits for a call strikes any more."""
        if self.process.alive:
            self._shell.aims.clear()
            self.process.stopped_until = 0.0
        self.start()

    def running(self) -> int:
        """How many attempts are not settled, tasks that wait included."""
        return len(self._shell.tasks) + self._opened.store.running() if self.process.alive else 0

    def _closed(self) -> None:
        if self._opened.store.running():
            # As `close` does when its time is over.
            self.world.trace(self.name, "closes with calls running")
        self.caught = set()
        self.process.kill()
        self.world.network.hosts.pop(self.index, None)
        self._opened.close()
        self.world.network.host_died(self)

    def count(self, fault: Fault) -> None:
        """Count where a fault struck: at the points of all calls, or at none."""
        coverage = self.world.coverage
        if not self._shell.tasks:
            coverage.hit(fault, Point.IDLE)
        for task in self._shell.tasks:
            coverage.hit(fault, task.point)

    def _sweep(self) -> None:
        authority = self._opened.authority
        if ended := sweep(self._opened.store, authority):
            self.world.trace(self.name, f"{len(ended)} clients ended")
        self.process.after(authority.term_s / _SWEEPS_PER_TERM, self._sweep)

    # -- requests --------------------------------------------------------------------------

    def receive(self, rpc: Rpc) -> None:
        """Take a request."""
        if rpc.kind == "call":
            self._call(rpc)
        elif rpc.kind == "batch":
            self._batch(rpc)
        elif rpc.kind == "resolve":
            self._resolve(rpc)
        elif isinstance(rpc, StreamRpc):
            self._streams.receive(rpc)
        elif rpc.kind in ("group", "operator"):
            self._opened.serve_group(self, rpc)  # type: ignore[attr-defined]  # of a group
        else:
            self._lease(rpc)

    def _lease(self, rpc: Rpc) -> None:
        answer = self._answer_lease[rpc.method.rpartition("/")[2]]
        try:
            reply = answer(rpc.request, b"")
        except LeaseError as error:
            if self.world.loop.tracing:
                self.world.trace(self.name, f"{rpc.method} of {rpc.source.name}: {error.reason}")
            status = status_of(error)
            self.world.network.reply(
                rpc, FinalStatus(status.code, status.details, (), status.trailing_metadata), None
            )
            return
        if self.world.loop.tracing:
            self.world.trace(self.name, f"{rpc.method} of {rpc.source.name}: OK")
        if rpc.method.endswith("/Release"):
            self.caught.clear()
            self.world.granted.pop(pb.ReleaseRequest.FromString(rpc.request).client_id, None)
        elif rpc.method.endswith("/Grant") and self._keeps_clients():
            client_id = pb.GrantReply.FromString(reply).client_id
            self.world.granted[client_id] = self.world.loop.now
        self.world.network.reply(rpc, _OK, reply)

    def _call(self, rpc: Rpc) -> None:
        context = _Context(rpc.metadata)
        operation = decode(rpc.request)
        try:
            call = self._engine.arrive(rpc.method, rpc.request, context)
        except RiflError as error:
            self._refuse(rpc, operation, None, error)
            return
        policy = _policy_of(rpc.method)
        Task(
            self._shell,
            serve_fast(self._engine.store, call, policy),
            partial(self._served, rpc, operation, call),
            partial(self._handle, operation),
            self._deadline(rpc),
        ).go()

    def _batch(self, rpc: Rpc) -> None:
        engine = self._engine
        try:
            batch = Batch(engine, rpc.method, rpc.request, _Context(rpc.metadata))
        except RiflError as error:
            self._refuse(rpc, None, None, error)
            return
        policy = _policy_of(rpc.method)

        def handle(attempt: Attempt, go_on: Callable[[HandlerResult], None]) -> None:
            operation = decode(attempt.call.request)  # type: ignore[attr-defined]
            self._handle(operation, attempt, go_on, task)

        steps = serve_batch(
            engine.store,
            batch.calls,
            policy,
            run=lambda attempts: BatchHandlers(rpc, batch, task, attempts, handle),
            fetch=lambda calls: Fetched(calls, engine.store.fetch),
            gone=batch.gone,
        )
        done = partial(self._batch_served, rpc, batch)
        task = Task(self._shell, steps, done, deadline=self._deadline(rpc), batched=True)
        task.go()

    def _batch_served(
        self,
        rpc: Rpc,
        batch: Batch,
        answers: list[BatchAnswer] | None,
        error: BaseException | None,
    ) -> None:
        if answers is None:
            self._refuse(rpc, None, batch.calls[0], error)
            return
        for call, answer in zip(batch.calls, answers, strict=True):
            operation = decode(call.request)
            if isinstance(answer, Answer):
                self._note(rpc, operation, call, answer)
            elif self.world.loop.tracing:
                self.world.trace(self.name, f"call {operation.call} in a batch: {answer!r}")
            if isinstance(answer, Answer):
                rpc.refused = rpc.refused or answer.outcome is Outcome.NOT_EXECUTED
        try:
            reply = batch.reply(answers, 0.0)
        except RiflError as refusal:
            self._refuse(rpc, None, batch.calls[0], refusal)
            return
        self.world.network.reply(rpc, _OK, reply)
        self._shell.reach(Point.ANSWERED)

    def _resolve(self, rpc: Rpc) -> None:
        context = _Context(rpc.metadata)
        try:
            call = resolution_call(self._engine, rpc.request, context)
        except RiflError as error:
            self._refuse(rpc, None, None, error)
            return
        Task(
            self._shell,
            resolve(self._engine.store, call, RESOLUTION),
            partial(self._resolved, rpc, call),
            deadline=self._deadline(rpc),
        ).go()

    def _deadline(self, rpc: Rpc) -> float | None:
        if rpc.deadline_s is None:
            return None
        # gRPC sends how much is left, not when: no two clocks are compared.
        left = rpc.deadline_s - rpc.source.clock()
        return self.process.clock() + max(left, 0.0)

    def _served(
        self,
        rpc: Rpc,
        operation: Operation,
        call: Call,
        answer: Answer | None,
        error: BaseException | None,
    ) -> None:
        if answer is None:
            self._refuse(rpc, operation, call, error)
            return
        self._note(rpc, operation, call, answer)
        rpc.refused = answer.outcome is Outcome.NOT_EXECUTED
        status = Reply(call, answer).status()
        self._send(rpc, status)
        self._shell.reach(Point.ANSWERED)
        if rpc.method == _REPEATABLE:
            self._shell.reach(Point.REPEATABLE_ANSWERED)

    def _note(self, rpc: Rpc, operation: Operation, call: Call, answer: Answer) -> None:
        """Write down an answer that leaves."""
        world = self.world
        record, outcome = answer
        # What a group's leader may answer first is not final by itself; what came without
        # a number is (invariant 1). And a read leaves no record.
        final = not hasattr(self._opened, "machine") or (
            (bool(call.marks) or not call.configuration) and operation.behaviour != "read"
        )
        if final and not record.reason and outcome.value in ("executed", "replayed"):
            world.history.answer(
                world.loop.now,
                operation.call,
                outcome.value,
                STATUS_CODES[record.code].name,
                read_value(record.response),
            )
        if world.loop.tracing:
            world.trace(
                self.name,
                f"call {operation.call} attempt {call.attempt}{' (copy)' if rpc.copy else ''}: "
                f"{outcome.value} {record.response or record.details!r}",
            )

    def _resolved(
        self, rpc: Rpc, call: Call, answer: Answer | None, error: BaseException | None
    ) -> None:
        if answer is None:
            self._refuse(rpc, None, call, error)
        else:
            self.world.network.reply(rpc, _OK, resolution_reply(answer).SerializeToString())

    def _refuse(
        self, rpc: Rpc, operation: Operation | None, call: Call | None, error: BaseException | None
    ) -> None:
        if not isinstance(error, RiflError):
            self.world.broken(self.name, error)
            return
        if self.world.loop.tracing:
            subject = f"{rpc.kind} of {rpc.source.name}"
            if operation is not None:
                subject = f"call {operation.call}"
            copy = " (copy)" if rpc.copy else ""
            self.world.trace(self.name, f"{subject}{copy}: {error.reason}: {error}")
        self._send(rpc, Reply(call, error).status())
        if isinstance(error, LeaseExpired) and call is not None:
            self._told_as_expired(call.client_id)
        if rpc.kind != "resolve" and isinstance(error, LeaseExpired):
            self._shell.reach(Point.EXPIRED)

    def _told_as_expired(self, client_id: int) -> None:
        """A client that was told its id, and one whose handler ran at a crash, has a term (§5)."""
        kept = isinstance(self._opened.store, SqliteStore)
        told_at = self.world.granted.get(client_id)
        # Clocks run differently, and it may have been released by then.
        if told_at is not None and self.world.loop.now - told_at < self._term_s / 2:
            self.world.problems.append(
                f"unknown: {self.name} does not know client {client_id}, granted a moment ago"
            )
        if kept and client_id in self.caught and self.process.clock() < self._known_until:
            self.world.problems.append(
                f"unknown: {self.name} forgot client {client_id}, whose call a crash caught"
            )

    def _keeps_clients(self) -> bool:
        return isinstance(self._opened.store, (SqliteStore, GroupStore))

    def forget_whom_it_knew(self) -> None:
        """Lose the store, or what came after a copy of it: nobody has to be known."""
        self.caught.clear()
        self.world.granted.clear()

    def refuse(self, rpc: Rpc, error: RiflError) -> None:
        """Answer a request that is no call with a refusal."""
        self._refuse(rpc, None, None, error)

    def _send(self, rpc: Rpc, status: Any) -> None:
        self.world.network.reply(
            rpc,
            FinalStatus(
                STATUS_CODES[status.code],
                status.details,
                status.initial_metadata,
                status.trailing_metadata,
            ),
            status.response,
        )

    # -- the handler -----------------------------------------------------------------------

    def _handle(
        self,
        operation: Operation,
        attempt: Attempt,
        go_on: Callable[[HandlerResult], None],
        task: Task,
    ) -> None:
        """Work for a time, have the effect, work a little more, return."""
        plan = self.world.plan(operation.call)
        client_id = attempt.call.client_id
        if client_id not in self._met:
            self._met.add(client_id)
            # A plain call's intent would be there.
            if attempt.policy.kind is not Kind.PLAIN and client_id > 0:
                self._shell.reach(Point.FIRST)
        if attempt.policy.kind is Kind.IDEMPOTENT and plan.op == "touch":
            self.world.history.begin(self.world.loop.now, operation.call)
        self.process.after(plan.work_s, self._effect, attempt, operation, go_on, task)

    def _effect(
        self,
        attempt: Attempt,
        operation: Operation,
        go_on: Callable[[HandlerResult], None],
        task: Task,
    ) -> None:
        world = self.world
        behaviour = operation.behaviour
        task.at(Point.EFFECT)
        machine = getattr(self._opened, "machine", None)
        if machine is not None:
            try:
                record = machine.execute(operation)
            except Killed:
                return
            if world.loop.tracing:
                world.trace(self.name, f"call {operation.call} is executed: {record.response!r}")
            self.process.after(0.0001, go_on, HandlerResult(record))
        elif behaviour == "abort":
            go_on(HandlerResult(_ABORTED))
        elif behaviour == "later" or (behaviour == "unsure" and world.accounts.touched(operation)):
            # That nothing happened says nothing of an earlier run, that a crash ended.
            go_on(HandlerResult(_UNRECORDED))
        elif behaviour == "forget":
            # Committed without the record; half of these handlers raise then.
            if world.accounts.apply_once(operation, world.loop.now):
                self._unrecorded(attempt, operation.call, task)
            result = HandlerResult(CompletionRecord(response=b""))
            if operation.call % 2:
                result = HandlerResult(_RAISED, raised=True)
            go_on(result)
        elif attempt.policy.kind is Kind.ATOMIC:
            self._commit(attempt, operation, go_on)
        elif operation.behaviour == "read":
            go_on(HandlerResult(CompletionRecord(response=world.accounts.read(operation))))
        else:
            answer = world.accounts.apply(operation, world.loop.now)
            if world.loop.tracing:
                world.trace(self.name, f"call {operation.call} has its effect: {answer!r}")
            if behaviour == "raise":
                result = HandlerResult(forwarding(), raised=True)
            else:
                result = HandlerResult(CompletionRecord(response=answer))
            if attempt.policy.kind is Kind.IDEMPOTENT:
                self._shell.reach(Point.REPEATABLE_RAN)
            plan = world.plan(operation.call)
            self.process.after(plan.work_s * 0.3, go_on, result)

    def _unrecorded(self, attempt: Attempt, call: int, task: Task) -> None:
        """Note an effect without a record until a store was told of it, or its process is."""
        unrecorded = self.world.unrecorded
        unrecorded[call] = None
        if self.world.loop.tracing:
            self.world.trace(self.name, f"call {call} has its effect, without its record")
        told = partial(unrecorded.pop, call)
        until = getattr(self._opened, "until_told", None)
        if until is None:
            task.at_the_end.append(told)
        else:
            until(attempt, told)

    def _commit(
        self, attempt: Attempt, operation: Operation, go_on: Callable[[HandlerResult], None]
    ) -> None:
        world = self.world
        record = CompletionRecord(response=world.accounts.preview(operation))
        try:
            self._opened.commit(attempt, record)
        except Exception as error:  # noqa: BLE001 - the handler's own, as gRPC would see it
            if world.loop.tracing:
                world.trace(self.name, f"call {operation.call} cannot commit: {error}")
            if was_written(error):
                # The effect is where the record is: in the same transaction.
                world.accounts.apply(operation, world.loop.now)
            go_on(HandlerResult(_RAISED, raised=True, undone=True))
            return
        world.accounts.apply(operation, world.loop.now)
        if world.loop.tracing:
            world.trace(self.name, f"call {operation.call} commits: {record.response!r}")
        self.process.after(0.0002, go_on, HandlerResult(record))


def _policy_of(method: str) -> MethodPolicy:
    policy = POLICIES.find(method)
    if policy is None:
        raise AssertionError(method)
    return policy


class _Context:
    """What the engine asks of gRPC's context."""

    __slots__ = ("_metadata",)

    def __init__(self, metadata: tuple[tuple[str, Any], ...]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._metadata

    def peer(self) -> str:
        """Everybody is at one address."""
        return "ipv4:10.0.0.1:1"

    def peer_identities(self) -> None:
        """Nobody is authenticated here."""


def forwarding() -> CompletionRecord:
    """Return what is recorded of a handler that raises, and forwards its upstream's metadata."""
    return _RAISED._replace(trailing_metadata=without_labels(_UPSTREAMS))
