"""Warnings of refusals in a server's log (DESIGN §9: nothing per call at info level)."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from _rifl_ground.log import get_logger
from _rifl_ground.seldom import SeldomLog
from curp.witness._refusal import abort
from lease_server import StorageUnavailable
from rifl._leases.service import status_of
from rifl._server.handler_results import raised_result
from rifl._server.reply import RefusalLog, Reply, refused
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.errors import (
    InProgress,
    OutcomeUnknown,
    PayloadMismatch,
    RecordPending,
    StaleRpc,
    StoreUnavailable,
)
from sharedlog._core.errors import CorruptLog, LogFull, LogStopped, LogUnavailable, NoSuchLog
from sharedlog._wire.refusals import refusal_of


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_mistake_is_told_with_its_identity(caplog: pytest.LogCaptureFixture) -> None:
    """A stale call, a bug in its caller, is a warning that names it (DESIGN §3, §9)."""
    RefusalLog(lambda: 0.0).refused("/s/M", Call(7, b"", 3), StaleRpc("old"))
    (told,) = _warnings(caplog)
    for expected in ("STALE_RPC", "7/3", "/s/M"):
        assert expected in told


def test_a_flood_is_one_warning_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """The same reason again is counted, not written; another one is (DESIGN §9, bounds)."""
    now = [0.0]
    log = RefusalLog(lambda: now[0])
    for _ in range(100):
        log.refused("/s/M", None, PayloadMismatch("other"))
    log.refused("/s/M", None, StaleRpc("old"))
    assert len(_warnings(caplog)) == 2
    now[0] = 10.0
    log.refused("/s/M", None, PayloadMismatch("other"))
    assert "left_out=99" in _warnings(caplog)[-1]


def test_what_the_protocol_expects_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A duplicate that is told to come again is nobody's mistake (DESIGN §3)."""
    RefusalLog().refused("/s/M", None, InProgress("running"))
    # A copy of a call that has its answer, for which nobody waits.
    RefusalLog().refused("/s/M", Call(7, b"", 3, attempt=2), StaleRpc("old"))
    assert _warnings(caplog) == []


_PLACE = "connection to server at db7.internal, port 5432, failed"


class _Aborted(Exception):
    pass


class _Context:
    """Of a call that is aborted; says what travels."""

    def __init__(self) -> None:
        self.travels = ""

    async def abort(self, *told: Any) -> None:
        self.travels = repr(told)
        raise _Aborted


def _by_the_witness(error: Any) -> str:
    context: Any = _Context()
    with pytest.raises(_Aborted):
        asyncio.run(abort(context, error))
    return str(context.travels)


def _by_a_handler(error: Any, *, aio: bool) -> str:
    noted: Any = SimpleNamespace(
        noted_code=None,
        noted_details=None,
        noted_initial=(),
        noted_trailing=(),
        aborted=False,
        rifl_undone=False,
        rifl_attempt=SimpleNamespace(policy=MethodPolicy()),
    )
    return repr(raised_result(noted, error, aio=aio).record)


@pytest.mark.parametrize(
    ("error", "way"),
    [
        (kind, way)
        for kind in (StoreUnavailable, StorageUnavailable, RecordPending)
        for way in (
            lambda error: repr(Reply(None, error).status()),
            lambda error: repr(Reply(None, error).item()),
            lambda error: repr(refused(error)),
            lambda error: repr(tuple(status_of(error))),
            _by_the_witness,
            partial(_by_a_handler, aio=False),
            partial(_by_a_handler, aio=True),
        )
    ]
    + [
        (kind, lambda error: repr(refusal_of(error)))
        for kind in (LogUnavailable, LogFull, LogStopped, CorruptLog, NoSuchLog)
    ],
)
def test_no_caller_is_told_where_the_store_is(error: Any, way: Any) -> None:
    """A driver's text names hosts, users and files: it is the operator's alone (DESIGN §9)."""
    assert "db7" not in way(error(f"it cannot be reached: {_PLACE}"))


@pytest.mark.parametrize("kind", [StoreUnavailable, OutcomeUnknown, LogUnavailable])
def test_an_operator_is_told_the_whole_cause(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The event has the text and the cause, once in ten seconds for each reason (DESIGN §9)."""
    now = [0.0]
    seldom = SeldomLog(get_logger("rifl.server"), lambda: now[0])
    for _ in range(3):
        try:
            raise kind("it failed") from OSError(_PLACE)
        except kind as error:
            seldom.cause(error)
    seldom.cause(InProgress("running"))
    (told,) = _warnings(caplog)
    for expected in ("refused_for_a_cause", "it failed", _PLACE):
        assert expected in told
    now[0] = 10.0
    seldom.cause(StoreUnavailable("again"))
    assert len(_warnings(caplog)) == 2
