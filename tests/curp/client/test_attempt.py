"""Attempts at a group, the part alike for threads and loops: DESIGN §7; CURP §3.2.1."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from curp._core.group_call import AttemptStep
from curp._core.witness_table import WitnessVerdict
from curp._wire.labels import SYNCED_KEY
from curp.client._attempt import GroupAttempt, begin
from curp.client._caller_keys import CallerKeys
from curp.client._group_knowledge import GroupKnowledge, GroupStatistics
from curp.v1 import curp_pb2
from rifl._client.answers import FinalStatus
from rifl._wire.header import HEADER_KEY
from rifl._wire.labels import OUTCOME_KEY
from rifl.v1 import rifl_pb2

METHOD = "/nobody.v1.Nobody/Deposit"
HEADER = rifl_pb2.CallHeader(client_id=5, token=b"t", seq=3, attempt=1).SerializeToString()


class _Path:
    """A path that knows its group, and counts how often it was asked to ask again."""

    def __init__(self, *witnesses: str, callable_keys: bool = False) -> None:
        self.knowledge = GroupKnowledge()
        self.keys = CallerKeys({METHOD: lambda request: request})
        self.asked = 0
        if witnesses:
            reply = curp_pb2.GroupConfiguration(group="bank", configuration=7, witnesses=witnesses)
            reply.methods.add(method=METHOD, by_callable=callable_keys)
            self.knowledge.asked(reply)

    def refresh(self) -> None:
        self.asked += 1


def _begin(path: _Path, timeout: float | None = 3.0) -> GroupAttempt:
    begun = begin(path, METHOD, b"body", (("a", "b"), (HEADER_KEY, HEADER)), timeout)
    assert isinstance(begun, tuple)
    assert begun[1] == (("a", "b"),)
    return begun[0]


def _status(code: grpc.StatusCode, *trailing: tuple[str, Any]) -> FinalStatus:
    return FinalStatus(code, "", (), trailing, "")


OK = _status(grpc.StatusCode.OK)


ACCEPTED = int(WitnessVerdict.ACCEPTED)


def test_what_is_not_known_is_sent_to_the_leader_alone() -> None:
    """No configuration, another method, or no header: as it is; the first one is asked for."""
    unknown = _Path()
    assert begin(unknown, METHOD, b"", ((HEADER_KEY, HEADER),), None) is None
    assert unknown.asked == 1
    path = _Path("a")
    assert begin(path, "/bank.v1.Bank/Balance", b"", ((HEADER_KEY, HEADER),), None) is None
    assert begin(path, METHOD, b"", (("a", "b"),), None) is None
    assert path.asked == 0


def test_leader_and_witnesses_are_sent_the_same_header_under_the_number() -> None:
    """The number is appended, and the keys that only the caller can find (invariant 11)."""
    attempt = _begin(_Path("a", callable_keys=True))
    record = curp_pb2.RecordRequest.FromString(attempt.record)
    assert record.configuration == 7
    assert record.call.method == METHOD
    assert record.call.request == b"body"
    assert attempt.entry == (HEADER_KEY, record.call.header)
    header = rifl_pb2.CallHeader.FromString(record.call.header)
    assert (header.client_id, header.seq, header.configuration) == (5, 3, 7)
    assert len(header.conflict_keys) == 1
    plain = _begin(_Path("a"))
    assert not rifl_pb2.CallHeader.FromString(plain.entry[1]).conflict_keys


def test_all_accepted_is_one_round_trip() -> None:
    """Counted as fast; the configuration is not asked for again (invariant 1)."""
    path = _Path("a", "b")
    attempt = _begin(path)
    assert attempt.witness_answered("a", ACCEPTED) is AttemptStep.WAIT
    assert attempt.leader_answered(OK) is AttemptStep.WAIT
    step = attempt.witness_answered("b", ACCEPTED)
    assert step is AttemptStep.FINAL
    attempt.end(step)
    assert attempt.error(step, OK) is None
    assert path.knowledge.statistics() == GroupStatistics(fast=1, synced=0, asked=0)
    assert path.asked == 0


@pytest.mark.parametrize(("number", "asked"), [("7", 0), ("8", 1)])
def test_a_marked_answer_stands_and_tells_of_another_number(number: str, asked: int) -> None:
    """Synced by a leader of another number: the client asks who makes up the group."""
    path = _Path("a")
    attempt = _begin(path)
    step = attempt.leader_answered(_status(grpc.StatusCode.OK, (SYNCED_KEY, number)))
    assert step is AttemptStep.FINAL
    attempt.end(step)
    assert path.knowledge.statistics() == GroupStatistics(fast=0, synced=1, asked=0)
    assert path.asked == asked


def test_a_silent_witness_has_the_leader_asked_and_is_suspect() -> None:
    """The sync request names identity and number (invariant 9); later calls leave it alone."""
    path = _Path("a", "b")
    attempt = _begin(path)
    attempt.witness_answered("a", ACCEPTED)
    assert attempt.leader_answered(OK) is AttemptStep.WAIT
    assert attempt.patience_over(("b",)) is AttemptStep.SYNC
    request, left_s = attempt.ask()
    assert (request.configuration, request.client_id, request.seq) == (7, 5, 3)
    assert left_s is not None
    assert 0 < left_s <= 3.0
    reply = curp_pb2.SyncReply(verdict=curp_pb2.SyncReply.SYNCED)
    step = attempt.sync_answered(reply)
    assert step is AttemptStep.FINAL
    attempt.end(step)
    assert path.knowledge.statistics() == GroupStatistics(fast=0, synced=0, asked=1)
    assert begin(path, METHOD, b"", ((HEADER_KEY, HEADER),), None) is None


def test_an_answer_that_nobody_vouches_for_is_not_told() -> None:
    """Another leader does not know the call: unknown, to be sent again (invariants 1 and 9)."""
    path = _Path("a")
    attempt = _begin(path)
    attempt.leader_answered(OK)
    assert attempt.witness_failed("a") is AttemptStep.SYNC
    step = attempt.sync_answered(curp_pb2.SyncReply(verdict=curp_pb2.SyncReply.NOT_KNOWN))
    assert step is AttemptStep.AGAIN
    attempt.end(step)
    error = attempt.error(step, OK)
    assert error is not None
    assert dict(error.trailing_metadata())[OUTCOME_KEY] == "unknown"
    assert path.asked == 1
    assert path.knowledge.statistics() == GroupStatistics(0, 0, 0)


def test_a_verdict_from_a_later_version_is_no_acceptance() -> None:
    """A number that is not known here says nothing: the leader is asked (invariant 2)."""
    attempt = _begin(_Path("a"))
    assert attempt.leader_answered(OK) is AttemptStep.WAIT
    assert attempt.witness_answered("a", 99) is AttemptStep.SYNC
    answer = curp_pb2.SyncReply()
    answer.verdict = 99  # type: ignore[assignment]
    assert attempt.sync_answered(answer) is AttemptStep.AGAIN
