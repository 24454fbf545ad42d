"""Labels: the metadata of an answer that are ours, and a handler's without them (DESIGN §3).

A label speaks of one call of one server. A handler that forwards the error of a server
which it called itself forwards that server's labels with it, and its own caller would take
them for ours: that nothing ran, say, and then run it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from _rifl_ground.refusals import Outcome
from rifl._grpc.status import DETAILS_KEY, read_error_info, without_error_info
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import Metadata

PREFIX = "rifl-"
OUTCOME_KEY = "rifl-outcome"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
# The key in an ErrorInfo's metadata of the identity that was refused: ``rpc_info``.
RPC_INFO = "rpc"
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


def parse_outcome(metadata: Iterable[tuple[str, str | bytes]] | None) -> Outcome | None:
    """Return the outcome an answer's trailing metadata names, None if none."""
    for key, value in metadata or ():
        if key == OUTCOME_KEY:
            return _OUTCOMES.get(value if isinstance(value, str) else "")
    return None


def rpc_info(rpc_id: RpcId) -> str:
    """Return the identity of a refused call: client id, slash, seq or key in hexadecimal."""
    return f"{rpc_id.client_id}/{rpc_id.seq if rpc_id.key is None else rpc_id.key.hex()}"


def read_refusal(
    metadata: Iterable[tuple[str, str | bytes]] | None,
) -> tuple[str, dict[str, str], float | None] | None:
    """Return reason, ErrorInfo metadata and seconds to wait of a rifl refusal.

    None for any other error; never raises on what a peer sent.
    """
    return read_error_info(tuple(metadata or ()))


def without_labels(metadata: Metadata) -> Metadata:
    """Return the handler's own metadata, without rifl's entries and ErrorInfo."""
    if not any(key == DETAILS_KEY or key.startswith(PREFIX) for key, _ in metadata):
        return metadata
    found: list[tuple[str, str | bytes]] = []
    for key, value in metadata:
        if key.startswith(PREFIX):
            continue
        if key == DETAILS_KEY and isinstance(value, bytes):
            value = without_error_info(value)
            if not value:
                continue
        found.append((key, value))
    return tuple(found)
