"""Texts of handlers that gRPC cannot send are the same at first and in every replay (DESIGN §4)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from tests.helpers.raw import RawClient
from tests.helpers.servers import KINDS, generic, serve
from tests.helpers.waiting import DEADLINE_S

# What is left of a file's name that is no UTF-8.
_NAME = "caf\udce9"
_METHOD = "/test.Text/Act"


def _act(request: bytes, context: Any) -> Any:
    if request == b"raise":
        raise ValueError(_NAME)
    if request == b"abort":
        return context.abort(grpc.StatusCode.NOT_FOUND, _NAME)
    context.set_code(grpc.StatusCode.NOT_FOUND)
    context.set_details(_NAME)
    return b""


async def _act_aio(request: bytes, context: Any) -> Any:
    said = _act(request, context)
    return await said if asyncio.iscoroutine(said) else said


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_with_a_lone_surrogate_is_one_text(tmp_path: Path, kind: str, store: str) -> None:
    """Replaced before it is recorded, so that first answer and replays are the same (DESIGN §4)."""
    url = f"sqlite:///{tmp_path / 's.db'}" if store == "sqlite" else store
    handlers = [generic("test.Text", {"Act": _act_aio if kind == "aio" else _act})]
    with (
        rifl.Deduplicator(url) as dedup,
        serve(kind, handlers, dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        for seq, said in enumerate((b"raise", b"abort", b"set"), 1):
            first = client.call(_METHOD, said, seq, timeout=DEADLINE_S)
            again = client.call(_METHOD, said, seq, attempt=2, timeout=DEADLINE_S)
            assert (first.outcome, again.outcome) == ("executed", "replayed")
            assert (again.code, again.details) == (first.code, first.details)
            # The others raise in the handler, as gRPC's own context does.
            assert (said != b"raise") or first.details.endswith("caf?")
