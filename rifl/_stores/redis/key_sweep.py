"""The sweep of keyed calls whose retention is over (DESIGN §4)."""

from __future__ import annotations

from typing import Any, Protocol

from _rifl_ground.redis.lua import Script
from rifl._stores.redis.scripts import ENDS, EXPIRE
from rifl.core._serving.namespace import is_namespace

_LOOKED_AT_ONCE = 200
# Redis does nothing else meanwhile.
_KEYS_AT_ONCE = 500


class Scripts(Protocol):
    """Who runs scripts: the backend."""

    def run(self, script: Script, client_id: int | None, arguments: list[Any]) -> list[Any]:
        """Run a script, blocking; returns status and values. Raises ``BackendError``."""


def sweep_keys(scripts: Scripts, lost: bytes, limit: int) -> int:
    """Look at the clients and namespaces that are due; return how many keys went.

    Any number of replicas may do so at once. A client whose keys are retained for
    a time is in the index, no later than the first of them is over; each look says
    when the next one is, and the index is moved only if nobody filed it meanwhile.
    """
    reply = scripts.run(ENDS, None, ["due", _LOOKED_AT_ONCE])
    lived, count = reply[1], int(reply[2])
    living, due = reply[3 : 3 + count], reply[3 + count :]
    gone = 0
    for client_id, seen in zip(due[::2], due[1::2], strict=True):
        look: bytes = b""
        while gone < limit:
            wanted = min(_KEYS_AT_ONCE, limit - gone)
            arguments = [wanted, lost, int(is_namespace(int(client_id))), lived, *living]
            reply = scripts.run(EXPIRE, int(client_id), arguments)
            gone += int(reply[1])
            look = reply[2] if reply[0] == b"look" else b""
            if int(reply[1]) < wanted:
                break
        else:
            return gone
        scripts.run(ENDS, None, ["move", client_id, seen, look])
    return gone
