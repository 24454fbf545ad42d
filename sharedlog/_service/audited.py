"""The acts of operators and players at a served log, as the audit has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rifl._grpc.audit import CallerAudit
from sharedlog._core.catalog import STREAMS
from sharedlog._core.player.rows import ordered
from sharedlog._service.access import Caller
from sharedlog._service.answers import Answer
from sharedlog.v1 import log_pb2 as pb
from sharedlog.v1 import steps_pb2

# A verb and its object; none for a request that reads, or is its caller's own.
Acts = Iterator[tuple[str, str]]
# A player's own sign of life, which it takes away when it ends.
_BEATS = "duty/"
_MOST_NAMED = 10


def audited(audit: CallerAudit, method: str, answer: Answer) -> Answer:
    """Return what answers a method, and tells the audit what that changed, or who may not."""
    acts = _ACTS.get(method)
    if acts is None:
        return answer

    def telling(request: Any, caller: Caller) -> Any:
        try:
            reply = answer(request, caller)
        except Exception as error:
            for verb, what in acts(request):
                audit.acted(caller.name, verb, what, error)
            raise
        # Of a player's step whose conditions did not hold nothing was done.
        if not getattr(reply, "refused", False):
            for verb, what in acts(request):
                audit.acted(caller.name, verb, what)
        return reply

    return telling


def _make_stream(request: pb.MakeStreamRequest) -> Acts:
    if not request.find:
        yield "make_stream", request.name


def _retire(request: pb.RetireRequest) -> Acts:
    if not request.producer.token:
        yield "retire_producer", str(request.producer.id)


def _forget_named(request: pb.ForgetNamedRequest) -> Acts:
    yield "forget_producer", request.name


def _end_holds(request: pb.EndHoldsRequest) -> Acts:
    yield "forget_hold" if request.forget else "drop_hold", request.name


def _trim(request: pb.TrimRequest) -> Acts:
    yield "trim", "log"


def _commit(request: steps_pb2.CommitStep) -> Acts:
    """What a player removes, or makes, and what an operator orders one to do."""
    removed: list[str] = []
    for put in request.puts:
        if put.HasField("value"):
            if order := ordered(put.key, put.value):
                yield order, put.key
            elif put.key.startswith(STREAMS):
                yield "make_stream", put.key.removeprefix(STREAMS)
        elif not put.key.startswith(_BEATS):
            removed.append(put.key)
    if removed:
        more = len(removed) - _MOST_NAMED
        named = ", ".join(removed[:_MOST_NAMED])
        yield "remove", f"{named} and {more} more" if more > 0 else named


_ACTS: Mapping[str, Callable[[Any], Acts]] = {
    "MakeStream": _make_stream,
    "Retire": _retire,
    "ForgetNamed": _forget_named,
    "EndHolds": _end_holds,
    "Trim": _trim,
    "Commit": _commit,
}
