"""Make the protocol's test vectors: ``python -m tests.compat.make_vectors``.

They are for implementations in other languages (``docs/reference/protocol.md``), and they
hold this one to what it has sent before: a change of a line that is there is a
change of the protocol.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lease_server.v1 import lease_server_pb2 as lease_pb
from rifl._grpc.status import DETAILS_KEY as STATUS_DETAILS_KEY
from rifl._server.reply import Reply
from rifl._wire.header import fingerprint
from rifl._wire.labels import OUTCOME_KEY
from rifl._wire.records import record_to_bytes
from rifl.core._shared import errors
from rifl.core._shared.call import pairs_from_ranges
from rifl.core._shared.errors import RiflError
from rifl.v1 import rifl_pb2
from tests.compat.batch_vectors import batch_vectors
from tests.compat.make_store import ANSWER, REFUSAL

__all__ = ["DIRECTORY", "vectors"]

DIRECTORY = Path(__file__).parents[2] / "proto" / "testdata"
_TOKEN = bytes.fromhex("01000000" + "a5" * 16)
_STORE = 0x0123456789ABCDEF
# Raised by a client on its own account, never sent.
_LOCAL = {
    errors.ForkedProcess,
    errors.NotDeduplicated,
    errors.NotWrapped,
    errors.ReentrantCall,
    RiflError,
}


def _header(
    name: str, *, ranges: list[tuple[int, int]] | None = None, **fields: Any
) -> dict[str, Any]:
    fields = {"client_id": 7, "token": _TOKEN, "attempt": 1, **fields}
    first = fields.get("first_incomplete", 1)
    wire = rifl_pb2.CallHeader(completed=pairs_from_ranges(first, ranges or []), **fields)
    shown = {key: _shown(value) for key, value in fields.items()}
    return {
        "name": name,
        "header": shown,
        "completed_ranges": ranges or [],
        "completed": list(wire.completed),
        "wire": wire.SerializeToString(deterministic=True).hex(),
    }


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    # Where JSON's numbers are doubles, larger ones would be others.
    return str(value) if value > 2**53 else value


def _headers() -> dict[str, Any]:
    stamp = {"time_us": 1_700_000_000_000_000, "seed": 2**64 - 1}
    header = rifl_pb2.CallHeader
    bad = [
        ("no identity", header(client_id=7, attempt=1)),
        ("no client id", header(seq=1, attempt=1)),
        ("seq 0", header(client_id=7, seq=0)),
        ("seq beyond 2^63-1", header(client_id=7, seq=2**63)),
        ("first_incomplete beyond seq", header(client_id=7, seq=2, first_incomplete=3)),
        ("a gap of 0", header(client_id=7, seq=9, completed=[0, 1])),
        ("half a pair", header(client_id=7, seq=9, completed=[1])),
        ("a range over the call's own seq", header(client_id=7, seq=3, completed=[1, 2])),
        ("65 ranges", header(client_id=7, seq=999, completed=[1, 1] * 65)),
        ("an empty key", header(client_id=7, key=b"")),
        ("a key of 256 bytes", header(client_id=7, key=b"k" * 256)),
        ("a keyed call with acknowledgements", header(client_id=7, key=b"k", completed=[1, 1])),
        ("a content hash of 65 bytes", header(client_id=7, seq=1, content_hash=b"h" * 65)),
    ]
    return {
        "valid": [
            _header("first call", seq=1, first_incomplete=1, **stamp),
            _header("second attempt", seq=1, first_incomplete=1, **{**stamp, "attempt": 2}),
            _header(
                "acknowledgements", seq=12, first_incomplete=5, ranges=[(7, 9), (11, 11)], **stamp
            ),
            _header("the largest seq", seq=2**63 - 1, first_incomplete=2**63 - 1),
            _header("keyed", key=b"order-17"),
            _header("content hash", key=b"order-17", content_hash=bytes(range(32))),
            _header("receive limit", seq=1, first_incomplete=1, max_response_bytes=1 << 20),
            _header("tried for longer", seq=1, first_incomplete=1, try_ms=60_000),
            _header("resuming a stream", seq=1, first_incomplete=1, attempt=2, received=3),
        ],
        "invalid": [
            {"name": name, "wire": message.SerializeToString(deterministic=True).hex()}
            for name, message in bad
        ]
        + [{"name": "not a message", "wire": "ffffff"}, {"name": "empty", "wire": ""}],
    }


def _answers() -> dict[str, Any]:
    classes = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, RiflError) and cls not in _LOCAL
    ]
    refusals = []
    for cls in classes:
        status = Reply(None, cls("why")).status()
        trailing = dict(status.trailing_metadata)
        details = trailing[STATUS_DETAILS_KEY]
        refusals.append(
            {
                "reason": cls.reason,
                "code": status.code,
                "code_name": cls.code_name,
                "message": status.details,
                OUTCOME_KEY: trailing[OUTCOME_KEY],
                STATUS_DETAILS_KEY: details.hex() if isinstance(details, bytes) else details,
            }
        )
    return {
        "outcomes": ["executed", "replayed", "not-executed", "unknown"],
        "refusals": sorted(refusals, key=lambda refusal: str(refusal["reason"])),
    }


def _lease() -> list[dict[str, Any]]:
    messages = [
        lease_pb.GrantRequest(),
        lease_pb.GrantReply(
            client_id=7, token=_TOKEN, term_ms=60_000, heartbeat=lease_pb.HEARTBEAT_STREAM,
            deduplicated=["*"], not_deduplicated=["/grpc.health.v1.Health/*"], window=512,
            store=_STORE,
        ),
        lease_pb.RenewRequest(client_id=7, token=_TOKEN, store=_STORE),
        lease_pb.RenewReply(client_id=7, term_ms=60_000),
        lease_pb.RenewRequest(
            client_id=7, token=_TOKEN, store=_STORE,
            also=[lease_pb.RenewRequest(client_id=9, token=_TOKEN, store=_STORE)],
        ),
        lease_pb.RenewRequest(
            client_id=7, token=_TOKEN, store=_STORE, first_incomplete=5, completed=[2, 3, 1, 1]
        ),
        lease_pb.RenewReply(
            client_id=7, term_ms=60_000,
            also=[lease_pb.RenewReply(client_id=9, refused="LEASE_EXPIRED")],
        ),
        lease_pb.RenewReply(client_id=7, refused="LEASE_EXPIRED"),
        lease_pb.ReleaseRequest(client_id=7, token=_TOKEN),
        lease_pb.OpenSessionRequest(name="orders", retention_ms=86_400_000),
        lease_pb.OpenSessionReply(
            client_id=1025, token=_TOKEN, retention_ms=86_400_000, created=True, store=_STORE
        ),
        lease_pb.OpenSessionRequest(name="orders", secret=b"a" * 16, older_secrets=[b"b" * 16]),
        lease_pb.CloseSessionRequest(name="orders"),
        lease_pb.CloseSessionRequest(name="orders", secret=b"a" * 16, older_secrets=[b"b" * 16]),
        rifl_pb2.ResolveRequest(client_id=7, token=_TOKEN, seq=3, store=_STORE),
        rifl_pb2.ResolveRequest(client_id=7, token=_TOKEN, key=b"order-17"),
    ]  # fmt: skip
    return [
        {
            "message": message.DESCRIPTOR.full_name,
            "text": str(message).strip().split("\n"),
            "wire": message.SerializeToString(deterministic=True).hex(),
        }
        for message in messages
    ]


def _stored() -> dict[str, Any]:
    """What stores keep: not on the wire, and just as binding between releases."""
    return {
        "records": [
            {"name": "an answer", "bytes": record_to_bytes(ANSWER).hex()},
            {"name": "an error", "bytes": record_to_bytes(REFUSAL).hex()},
        ],
        "fingerprints": [
            {
                "method": method,
                "request": request.hex(),
                "content_hash": content_hash.hex(),
                "fingerprint": fingerprint(method, request, content_hash).hex(),
            }
            for method, request, content_hash in (
                ("/bank.Bank/Deposit", b"", b""),
                ("/bank.Bank/Deposit", b"\x0a\x05alice", b""),
                ("/bank.Bank/Deposit", b"\x0a\x05alice", b"hash"),
                ("/bank.Bank/Withdraw", b"\x0a\x05alice", b""),
            )
        ],
    }


def vectors() -> dict[str, Any]:
    """Return every file's name and content."""
    return {
        "headers.json": _headers(),
        "answers.json": _answers(),
        "batches.json": batch_vectors(),
        "messages.json": _lease(),
        "stored.json": _stored(),
    }


def main() -> None:
    """Write them all."""
    for name, content in vectors().items():
        (DIRECTORY / name).write_text(json.dumps(content, indent=1) + "\n")
        sys.stdout.write(f"{DIRECTORY / name}\n")


if __name__ == "__main__":
    main()
