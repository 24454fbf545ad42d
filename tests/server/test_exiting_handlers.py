"""A coroutine handler that calls ``sys.exit`` has failed, and its server goes on (DESIGN §4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from rifl._wire.envelope import encode_batch, parse_reply
from rifl.core._shared.stream_end import end_marker
from tests.helpers.processes import started
from tests.helpers.raw import RawClient, read
from tests.helpers.waiting import DEADLINE_S
from tests.server.exiting_server import FORMS, KEYED, SERVICE

_UNARY = f"/{SERVICE}/Unary"


def _end(client: RawClient, name: str, seq: int, attempt: int) -> tuple[str, str, int]:
    """Make a call of any form; its code, outcome, and how many messages came."""
    metadata = (("rifl-bin", client.header(seq, attempt=attempt)),)
    form: Any = {"Collect": "stream_unary", "Count": "unary_stream", "Write": "unary_stream"}
    stub = getattr(client.channel, form.get(name, "unary_unary"))(f"/{SERVICE}/{name}")
    if name in ("Count", "Write"):
        call = stub(b"a", metadata=metadata, timeout=DEADLINE_S)
        came: list[bytes] = []
        with pytest.raises(grpc.RpcError, match="SystemExit"):
            came.extend(call)
        return call.code().name, dict(call.trailing_metadata())["rifl-outcome"], len(came)
    request = iter([b"a", end_marker(1)]) if name == "Collect" else b"a"
    reply = read(stub.future(request, metadata=metadata, timeout=DEADLINE_S))
    assert "SystemExit" in reply.details
    return reply.code.name, reply.outcome, 0


@pytest.mark.parametrize("way", ["plain", "served"])
def test_sys_exit_is_a_failed_handler(tmp_path: Path, way: str) -> None:
    """In each form: one run, one answer, recorded; a real process serves the next call (§4)."""
    with started("tests.server.exiting_server", "rifl", way, log=tmp_path / "log") as process:
        with RawClient(process.line()) as client:
            for seq, name in enumerate(FORMS, 1):
                came = int(name in ("Count", "Write"))
                ends = [_end(client, name, seq, attempt) for attempt in (1, 2)]
                answers = [("UNKNOWN", outcome, came) for outcome in ("executed", "replayed")]
                assert ends == answers, name
            keyed = client.call(KEYED, b"a", bare=True)
            assert keyed.refusal == ("INVALID_ARGUMENT", "BAD_HEADER", "not-executed")
            ends_later = {client.call(_UNARY, b"later", 20, attempt=n).code for n in (1, 2)}
            assert ends_later == {grpc.StatusCode.UNKNOWN}
            metadata = (("rifl-bin", client.header(None)), ("rifl-batch", "1"))
            batch = client.channel.unary_unary(_UNARY)(
                encode_batch([b"a", b"count"], [], [21, 22]), DEADLINE_S, metadata
            )
            failed, counted = parse_reply(batch, 2).items()
            assert (failed.record.code, counted.record.response) == (2, b"9")
        if way == "served":
            assert process.terminate() == 0
