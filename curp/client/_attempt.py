"""One attempt at a group: what it is sent as, and what each answer means (DESIGN §7).

The rule is ``GroupCall``'s. Here is what stands around it alike for threads and event
loops: bytes to send, answers to read, what is learnt of witnesses and of the group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Protocol

import grpc

from _rifl_ground.refusals import Outcome
from curp._core.group_call import AttemptStep, GroupCall, LeaderAnswer, SyncVerdict
from curp._core.recording_choice import UNCOUNTED, BegunCall, Way
from curp._core.witness_table import WitnessVerdict
from curp.client._attempt_ends import AttemptError, lost_answer, unknown_refusal
from curp.client._caller_keys import CallerKeys
from curp.client._group_knowledge import GroupKnowledge, KnownConfiguration
from curp.client._messages import (
    RECORD_TIMEOUT_S,
    read_leader_answer,
    record_request,
    split_header,
    sync_request,
    synced_number,
    with_number,
)
from curp.client._record import Record
from curp.v1 import curp_pb2
from rifl._wire.header import HEADER_KEY

# The longest request that is recorded: with what stands around it, it fits through gRPC.
MOST_RECORDED_BYTES = 3 << 20

# The steps that end an attempt.
OVER = (AttemptStep.FINAL, AttemptStep.UNKNOWN, AttemptStep.AGAIN)
_NO_KEYS: frozenset[int] = frozenset()


class Path(Protocol):
    """The group path of a channel, as an attempt sees it."""

    knowledge: GroupKnowledge
    keys: CallerKeys

    def refresh(self) -> None:
        """Ask for the configuration, unless that was just done."""


class LeaderOnly:
    """An attempt that is sent unchanged to the leader alone, since that is no slower.

    Its header has no configuration number, so the leader knows that no witness
    recorded it: the call is in the log before its answer (invariant 1).
    """

    __slots__ = ("_began", "_begun", "_knowledge", "_method")

    def __init__(self, knowledge: GroupKnowledge, method: str, begun: BegunCall | None) -> None:
        self._knowledge = knowledge
        self._method = method
        self._begun = begun
        self._began = knowledge.clock()

    def end(self, *, answered: bool) -> None:
        """Count it; ``answered``: by the leader, with OK."""
        if answered:
            self._knowledge.count_skipped()
        took_s = self._knowledge.clock() - self._began
        self._knowledge.ended(self._method, self._begun, took_s if answered else None)


def begin(
    path: Path, method: str, body: bytes, metadata: Any, timeout: float | None
) -> tuple[GroupAttempt, tuple[Any, ...]] | LeaderOnly | None:
    """Begin an attempt; the caller's metadata beside it, to which its ``entry`` comes.

    ``LeaderOnly``, None: send the call unchanged to the leader alone; the caller must call the
    former's ``end`` afterwards. ``metadata``: its header last.
    """
    knowledge = path.knowledge
    view = knowledge.view_for(method)
    parts = split_header(metadata)
    if view is None or parts is None:
        if knowledge.view is None:
            path.refresh()
        return None
    if len(body) > MOST_RECORDED_BYTES or not knowledge.may_record():
        return None
    begun = knowledge.begin(method)
    if begun is None or begun.way is Way.LEADER_ONLY:
        return LeaderOnly(knowledge, method, begun)
    given, header = parts
    return GroupAttempt(path, view, method, header, body, timeout, begun), given


class GroupAttempt:
    """One attempt under a view. Its events are serialised by the shell.

    Each event returns the step that follows (``GroupCall``). At the end ``end`` is
    called once, after the shell gave up what is in flight.
    """

    __slots__ = (
        "_asked",
        "_begun",
        "_clock",
        "_header",
        "_method",
        "_path",
        "_timeout",
        "answer",
        "began",
        "entry",
        "record",
        "rule",
        "view",
    )

    def __init__(
        self,
        path: Path,
        view: KnownConfiguration,
        method: str,
        header: bytes,
        body: bytes,
        timeout: float | None,
        begun: BegunCall = UNCOUNTED,
    ) -> None:
        """``timeout``: of the whole attempt, in seconds."""
        self._path = path
        self._clock = path.knowledge.clock
        self._method = method
        self._begun = begun
        self._header = header
        self._timeout = timeout
        self._asked = False
        self.view = view
        self.rule = GroupCall(len(view.witnesses))
        self.began = self._clock()
        self.answer: LeaderAnswer | None = None
        keys = path.keys.find(method, body) if method in view.by_callable else _NO_KEYS
        numbered = with_number(header, view.number_field, keys)
        # The header as the leader gets it, and what each witness is sent.
        self.entry = (HEADER_KEY, numbered)
        self.record = record_request(view.record_fields, numbered, method.encode(), body)

    def leader_answered(self, status: Any) -> AttemptStep:
        """Take what the leader answered, OK or not."""
        self._path.knowledge.leader.note(self._clock() - self.began)
        if status.code() is grpc.StatusCode.OK:
            number = synced_number(status.trailing_metadata())
            if number is not None and number != self.view.number:
                self.rule.refresh = True
            answer = LeaderAnswer(Outcome.EXECUTED, number is not None)
        else:
            answer = read_leader_answer(status, self._header)
        if answer.outcome is None or answer.outcome is Outcome.NOT_EXECUTED:
            # It may be gone, or lead no more.
            self.rule.refresh = True
        self.answer = answer
        return self.rule.leader_answered(answer)

    def witness_answered(self, witness: str, number: int) -> AttemptStep:
        """Take a witness's verdict, by the numbers of ``curp.v1.RecordReply``."""
        self._path.knowledge.heard(witness)
        try:
            verdict = WitnessVerdict(number)
        except ValueError:
            return self.rule.witness_answered(None)
        return self.rule.witness_answered(verdict)

    def look(self) -> None:
        """Look for the leader now, if a witness said that another number is in force.

        The one that has the call may hang for long. Not under a lock of the shell's.
        """
        if self.rule.refresh:
            self._path.refresh()

    def witness_failed(self, witness: str) -> AttemptStep:
        """Handle a witness that could not be asked, or did not answer in time."""
        self._path.knowledge.silent(witness, self.began)
        return self.rule.witness_answered(None)

    def recorded(self, witness: str, record: Record) -> AttemptStep:
        """Take the end of a record."""
        if not record.sent:
            # Given up here, which says nothing of its witness.
            return self.rule.witness_answered(None)
        if not record.verdict:
            return self.witness_failed(witness)
        return self.witness_answered(witness, record.verdict)

    def patience_s(self) -> float:
        """How long to wait for witnesses, from when the leader answered: from now.

        Not beyond what a record may take: a stream has no deadline for each.
        """
        elapsed_s = self._clock() - self.began
        timeout = self._timeout
        limit_s = RECORD_TIMEOUT_S if timeout is None else min(timeout, RECORD_TIMEOUT_S)
        return min(self._path.knowledge.patience_s(elapsed_s), max(limit_s - elapsed_s, 0.0))

    def patience_over(self, silent: Iterable[str]) -> AttemptStep:
        """Wait no longer for witnesses, of which these were waited for in vain."""
        for witness in silent:
            self._path.knowledge.silent(witness, self.began)
        return self.rule.patience_over()

    def ask(self) -> tuple[curp_pb2.SyncRequest, float | None]:
        """Return what the leader is asked at SYNC, and for how long."""
        self._asked = True
        left_s = None
        if self._timeout is not None:
            left_s = max(self.began + self._timeout - self._clock(), 0.0)
        return sync_request(self.view.number, self._header), left_s

    def sync_answered(self, reply: curp_pb2.SyncReply | None) -> AttemptStep:
        """Take the reply to that; None: there is none."""
        verdict = None
        if reply is not None:
            with contextlib.suppress(ValueError):
                verdict = SyncVerdict(reply.verdict)
        return self.rule.sync_answered(verdict)

    def end(self, step: AttemptStep) -> None:
        """Learn from how it ended, and count it."""
        path, answer = self._path, self.answer
        if self.rule.refresh:
            path.refresh()
        took_s: float | None = None
        if step is AttemptStep.FINAL and answer is not None and answer.outcome is not None:
            path.knowledge.count(fast=self.rule.fast, asked=self._asked)
            took_s = self._clock() - self.began
        path.knowledge.ended(self._method, self._begun, took_s)

    def error(self, step: AttemptStep, status: Any) -> AttemptError | None:
        """Return how it ends if the leader's answer, ``status``, does not stand."""
        if step is AttemptStep.UNKNOWN:
            return unknown_refusal(status)
        if step is AttemptStep.AGAIN:
            return lost_answer("the leader's answer is not known to be in the log")
        return None
