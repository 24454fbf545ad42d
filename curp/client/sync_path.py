"""The group path of a sync channel: leader and witnesses at once (CURP §3.2.1; DESIGN §7)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from curp.client.errors import AttemptError, lost_answer, unknown_refusal
from curp.client.group import GroupKnowledge, GroupView, Statistics
from curp.client.keys import CallerKeys
from curp.client.requests import (
    RECORD_TIMEOUT_S,
    read_leader_answer,
    record_request,
    split_header,
    sync_request,
    synced_number,
    with_number,
)
from curp.core.group_call import GroupCall, LeaderAnswer, Step, SyncVerdict
from curp.core.witness_table import WitnessVerdict
from curp.v1 import curp_pb2
from rifl.core.outcome import Outcome
from rifl.wire import HEADER_KEY

__all__ = ["SyncPath"]

_ASK_TIMEOUT_S = 2.0
_NO_KEYS: frozenset[int] = frozenset()
_OVER = (Step.FINAL, Step.UNKNOWN, Step.AGAIN)


class SyncPath:
    """What attempts of a channel's calls are sent by, once it knows that it has a group.

    ``channel`` reaches the leader; ``connect`` opens a channel to a witness. Any thread.
    """

    def __init__(
        self, channel: grpc.Channel, connect: Callable[[str], grpc.Channel], keys: CallerKeys
    ) -> None:
        """Ask for the configuration; what is sent before it is there is synced."""
        self.knowledge = GroupKnowledge()
        self.keys = keys
        self._connect = connect
        self._lock = threading.Lock()
        self._closed = False
        self._witnesses: dict[str, _Witness] = {}
        self._configuration: Any = channel.unary_unary(
            "/curp.v1.Group/Configuration",
            request_serializer=curp_pb2.ConfigurationRequest.SerializeToString,
            response_deserializer=curp_pb2.GroupConfiguration.FromString,
        )
        self.sync: Any = channel.unary_unary(
            "/curp.v1.Group/Sync",
            request_serializer=curp_pb2.SyncRequest.SerializeToString,
            response_deserializer=curp_pb2.SyncReply.FromString,
        )
        self.refresh()

    def unary_unary(self, method: str, inner: Any) -> Any:
        """Return what sends attempts of a method; ``inner`` sends them to the leader alone."""
        return _GroupUnary(self, method, inner)

    def statistics(self) -> Statistics:
        """Count the answers since the path was made."""
        return self.knowledge.statistics()

    def refresh(self) -> None:
        """Ask for the configuration, unless that was just done."""
        if not self.knowledge.may_ask(time.monotonic()):
            return
        try:
            asked = self._configuration.future(
                curp_pb2.ConfigurationRequest(), timeout=_ASK_TIMEOUT_S
            )
        except ValueError:
            # The channel is closed.
            self.knowledge.asked(None)
            return
        asked.add_done_callback(self._asked)

    def close(self) -> None:
        """Close the witnesses' channels."""
        with self._lock:
            self._closed = True
            channels = [witness.channel for witness in self._witnesses.values()]
            self._witnesses.clear()
        for channel in channels:
            channel.close()

    def recorder(self, address: str) -> Any:
        """Return a witness's Record, on raw bytes."""
        found = self._witnesses.get(address)
        if found is None:
            with self._lock:
                if self._closed:
                    raise ValueError("Cannot invoke RPC on closed channel!")
                found = self._witnesses.get(address)
                if found is None:
                    found = self._witnesses[address] = _Witness(self._connect(address))
        return found.record

    def record(self, address: str, request: bytes, timeout_s: float) -> Any:
        """Send a record; the future of its verdict."""
        try:
            return self.recorder(address).future(request, timeout_s)
        except ValueError:
            if self._closed:
                raise
            # The witness was just taken out of the list, and its channel closed.
            return _NotSent()

    def _asked(self, reply: Any) -> None:
        answered = not reply.cancelled() and reply.code() is grpc.StatusCode.OK
        self.knowledge.asked(reply.result() if answered else None)
        view = self.knowledge.view
        if view is None:
            return
        with self._lock:
            gone = [address for address in self._witnesses if address not in view.witnesses]
            # Their last records fail, and are of no use any more.
            channels = [self._witnesses.pop(address).channel for address in gone]
            # One that restarted serves again only under a new number.
            for witness in self._witnesses.values():
                witness.stay_awake()
        for channel in channels:
            channel.close()


class _NotSent:
    """A record that no witness has: as a future that was cancelled."""

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def cancelled(self) -> bool:
        return True

    def done(self) -> bool:
        return True


class _Witness:
    """A channel to one witness, and its Record."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.record: Any = channel.unary_unary(
            "/curp.v1.Witness/Record", response_deserializer=curp_pb2.RecordReply.FromString
        )
        self._watch: Any = channel.unary_stream("/curp.v1.Witness/Watch")
        self._watching: Any = None
        self.stay_awake()

    def stay_awake(self) -> None:
        """Keep gRPC's thread for this channel, which it ends when no call is under way.

        To begin a thread for each record of a caller that is alone takes longer than
        to send it.
        """
        if self._watching is None or self._watching.done():
            self._watching = self._watch(b"")


class _Attempt:
    """One attempt under a view: its records on their way, and the rule that judges it."""

    def __init__(
        self, path: SyncPath, view: GroupView, method: str, header: bytes, body: bytes
    ) -> None:
        self.path = path
        self.view = view
        self.header = header
        self.rule = GroupCall(len(view.witnesses))
        self.began = time.monotonic()
        keys = path.keys.find(method, body) if method in view.by_callable else _NO_KEYS
        numbered = with_number(header, view.number, keys)
        self.entry = (HEADER_KEY, numbered)
        self._request = record_request(view.number, numbered, method, body)
        self.records: list[Any] = []

    def record(self, timeout_s: float | None) -> None:
        """Send the call to all witnesses."""
        limit = RECORD_TIMEOUT_S if timeout_s is None else min(timeout_s, RECORD_TIMEOUT_S)
        for address in self.view.witnesses:
            self.records.append(self.path.record(address, self._request, limit))

    def answer_of(self, call: Any) -> LeaderAnswer:
        """Read what the leader answered, OK or not."""
        if call.code() is not grpc.StatusCode.OK:
            answer = read_leader_answer(call, self.header)
        else:
            number = synced_number(call.trailing_metadata())
            if number is not None and number != self.view.number:
                self.rule.refresh = True
            answer = LeaderAnswer(Outcome.EXECUTED, number is not None)
        if answer.outcome is None or answer.outcome is Outcome.NOT_EXECUTED:
            # It may be gone, or lead no more.
            self.rule.refresh = True
        return answer

    def end(self, step: Step, answer: LeaderAnswer | None, *, asked: bool) -> None:
        """Let go of what is still under way, and learn from it."""
        for record in self.records:
            if not record.done():
                record.cancel()
        if self.rule.refresh:
            self.path.refresh()
        if step is Step.FINAL and answer is not None and answer.outcome is not None:
            self.path.knowledge.count(fast=self.rule.fast, asked=asked)

    def verdict_of(self, address: str, record: Any) -> WitnessVerdict | None:
        """Read a record's end; None: the witness did not say."""
        if record.cancelled():
            return None
        if record.code() is not grpc.StatusCode.OK:
            self.path.knowledge.silent(address, self.began)
            return None
        self.path.knowledge.heard(address)
        try:
            return WitnessVerdict(record.result().verdict)
        except ValueError:
            return None

    def sync_verdict(self, reply: Any) -> SyncVerdict | None:
        """Read a SyncReply."""
        try:
            return SyncVerdict(reply.verdict)
        except ValueError:
            return None


class _GroupUnary:
    """One method: as gRPC's multicallable below a rifl channel, which is all that uses it."""

    def __init__(self, path: SyncPath, method: str, inner: Any) -> None:
        self._path = path
        self._method = method
        self._inner = inner

    def __call__(self, body: bytes, timeout: float | None, metadata: Any, *rest: Any) -> Any:
        return self.with_call(body, timeout, metadata, *rest)[0]

    def with_call(
        self, body: bytes, timeout: float | None, metadata: Any, *rest: Any
    ) -> tuple[Any, Any]:
        attempt, given = self._begin(body, metadata)
        if attempt is None:
            found: tuple[Any, Any] = self._inner.with_call(body, timeout, metadata, *rest)
            return found
        attempt.record(timeout)
        try:
            reply, call = self._inner.with_call(body, timeout, (*given, attempt.entry), *rest)
        except grpc.RpcError as error:
            _finish_blocking(attempt, error, timeout)
            raise
        except BaseException:
            attempt.end(Step.AGAIN, None, asked=False)
            raise
        _finish_blocking(attempt, call, timeout)
        return reply, call

    def future(self, body: bytes, timeout: float | None, metadata: Any, *rest: Any) -> Any:
        attempt, given = self._begin(body, metadata)
        if attempt is None:
            return self._inner.future(body, timeout, metadata, *rest)
        attempt.record(timeout)
        leader = self._inner.future(body, timeout, (*given, attempt.entry), *rest)
        return _GroupFuture(attempt, leader, timeout)

    def _begin(self, body: bytes, metadata: Any) -> tuple[_Attempt | None, tuple[Any, ...]]:
        path = self._path
        view = path.knowledge.view_for(self._method)
        parts = split_header(metadata)
        if view is None or parts is None:
            if path.knowledge.view is None:
                path.refresh()
            return None, ()
        if not path.knowledge.may_record():
            return None, ()
        given, header = parts
        return _Attempt(path, view, self._method, header, body), given


def _finish_blocking(attempt: _Attempt, call: Any, timeout: float | None) -> None:
    """Wait until the leader's answer may stand; raise what ends the attempt otherwise."""
    path, rule = attempt.path, attempt.rule
    waiting = []
    for address, record in zip(attempt.view.witnesses, attempt.records, strict=True):
        if record.done():
            rule.witness_answered(attempt.verdict_of(address, record))
        else:
            waiting.append((address, record))
    answer = attempt.answer_of(call)
    step = rule.leader_answered(answer)
    until = 0.0
    for address, record in waiting:
        if step is not Step.WAIT:
            break
        now = time.monotonic()
        until = until or now + path.knowledge.patience_s(now - attempt.began)
        try:
            record.exception(timeout=max(until - now, 0.0))
        except grpc.FutureTimeoutError:
            path.knowledge.silent(address, attempt.began)
            step = rule.patience_over()
        except grpc.FutureCancelledError:
            step = rule.witness_answered(None)
        else:
            step = rule.witness_answered(attempt.verdict_of(address, record))
    asked = step is Step.SYNC
    if asked:
        verdict = None
        left_s = None if timeout is None else max(attempt.began + timeout - time.monotonic(), 0.0)
        try:
            request = sync_request(attempt.view.number, attempt.header)
            verdict = attempt.sync_verdict(path.sync(request, timeout=left_s))
        except (grpc.RpcError, ValueError):
            pass
        step = rule.sync_answered(verdict)
    attempt.end(step, answer, asked=asked)
    if step is Step.UNKNOWN:
        raise unknown_refusal(call)
    if step is Step.AGAIN:
        raise lost_answer("the leader's answer is not known to be in the log")


class _GroupFuture:
    """An attempt in the background: what gRPC's future is to a rifl channel."""

    def __init__(self, attempt: _Attempt, leader: Any, timeout: float | None) -> None:
        self._attempt = attempt
        self._leader = leader
        self._timeout = timeout
        self._lock = threading.Lock()
        self._answer: LeaderAnswer | None = None
        self._asked = False
        self._status: Any = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._timer: threading.Timer | None = None
        self._unheard = set(attempt.view.witnesses)
        for address, record in zip(attempt.view.witnesses, attempt.records, strict=True):
            record.add_done_callback(lambda done, at=address: self._recorded(at, done))
        leader.add_done_callback(self._leader_done)

    # Events, on gRPC's threads.

    def _recorded(self, address: str, record: Any) -> None:
        verdict = self._attempt.verdict_of(address, record)
        with self._lock:
            if self._status is not None:
                return
            self._unheard.discard(address)
            step = self._attempt.rule.witness_answered(verdict)
        self._take(step)

    def _leader_done(self, leader: Any) -> None:
        if leader.cancelled():
            with self._lock:
                self._status = leader
            self._end(Step.AGAIN)
            return
        answer = self._attempt.answer_of(leader)
        with self._lock:
            self._answer = answer
            step = self._attempt.rule.leader_answered(answer)
        if step is Step.WAIT:
            elapsed_s = time.monotonic() - self._attempt.began
            patience_s = self._attempt.path.knowledge.patience_s(elapsed_s)
            timer = self._timer = threading.Timer(patience_s, self._patience_over)
            timer.daemon = True
            timer.start()
        self._take(step)

    def _patience_over(self) -> None:
        attempt = self._attempt
        with self._lock:
            if self._status is not None:
                return
            unheard = list(self._unheard)
            step = attempt.rule.patience_over()
        for address in unheard:
            attempt.path.knowledge.silent(address, attempt.began)
        self._take(step)

    def _synced(self, asked: Any) -> None:
        verdict = None
        if not asked.cancelled() and asked.code() is grpc.StatusCode.OK:
            verdict = self._attempt.sync_verdict(asked.result())
        with self._lock:
            step = self._attempt.rule.sync_answered(verdict)
        self._take(step)

    def _take(self, step: Step) -> None:
        if step is Step.SYNC:
            self._ask()
        elif step in _OVER:
            with self._lock:
                if self._status is not None:
                    return
                if step is Step.FINAL:
                    self._status = self._leader
                elif step is Step.UNKNOWN:
                    self._status = unknown_refusal(self._leader)
                else:
                    why = "the leader's answer is not known to be in the log"
                    self._status = lost_answer(why)
            self._end(step)

    def _ask(self) -> None:
        attempt = self._attempt
        with self._lock:
            if self._asked:
                return
            self._asked = True
        left_s = None
        if self._timeout is not None:
            left_s = max(attempt.began + self._timeout - time.monotonic(), 0.0)
        try:
            asked = attempt.path.sync.future(
                sync_request(attempt.view.number, attempt.header), timeout=left_s
            )
        except ValueError:
            with self._lock:
                step = attempt.rule.sync_answered(None)
            self._take(step)
            return
        asked.add_done_callback(self._synced)

    def _end(self, step: Step) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._attempt.end(step, self._answer, asked=self._asked)
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
            self._over = True
        for callback in callbacks:
            callback(self)

    # What the exchange asks of a future. At the end only, but for the first two.

    _over = False

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        with self._lock:
            if not self._over:
                self._callbacks.append(callback)
                return
        callback(self)

    def cancel(self) -> bool:
        cancelled: bool = self._leader.cancel()
        if not cancelled:
            # Its answer is here, but nothing else is any more.
            self._take(Step.AGAIN)
        return cancelled

    def code(self) -> grpc.StatusCode:
        code: grpc.StatusCode = self._status.code()
        return code

    def details(self) -> Any:
        return self._status.details()

    def initial_metadata(self) -> Any:
        return self._status.initial_metadata()

    def trailing_metadata(self) -> Any:
        return self._status.trailing_metadata()

    def debug_error_string(self) -> Any:
        return self._status.debug_error_string()

    def result(self) -> Any:
        return self._leader.result()

    def exception(self) -> Any:
        return self._status if isinstance(self._status, AttemptError) else self._leader.exception()
