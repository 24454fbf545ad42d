"""The engine of a group: step 1 of a call, and what the log needs of it (DESIGN §4, §7)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from curp._replica.arrival import Arrival
from curp._replica.group_store import GroupStore, not_by_log
from curp._replica.services import Services
from rifl._server.call_engine import CallEngine
from rifl._wire.header import find_header, parse_call
from rifl.core._serving.answer import DEFAULT_RECEIVE_LIMIT
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RequestTooLarge

# Room in an entry beside request and response: names, keys, the answer's metadata.
_OVERHEAD_BYTES = 256 << 10


class GroupEngine(CallEngine):
    """``rifl``'s engine over a group. Any thread."""

    def __init__(self, store: GroupStore, services: Services, *arguments: Any, **more: Any) -> None:
        super().__init__(store, *arguments, **more)
        self._group = store
        self._services = services
        store.arrive = self._arrive_batched

    def arrive(
        self, method: str, request: bytes, context: Any, read: Callable[[bytes], Any] | None = None
    ) -> Call:
        """Step 1, on the leader only; keeps the call's bytes and its conflict keys."""
        if not self._group.takes_calls():
            # Before its token is looked at: this replica cannot tell whether it is genuine.
            refusal = self._group.not_leader()
            header = find_header(context.invocation_metadata())
            if header is None:
                raise refusal
            raise not_by_log(refusal, parse_call(header, method, b""))
        call = super().arrive(method, request, context, read)
        self._take(call, request, read)
        return call

    def authenticate(self, call: Call, context: Any) -> None:
        """As ``rifl``'s, on the leader only."""
        if not self._group.takes_calls():
            raise not_by_log(self._group.not_leader(), call)
        super().authenticate(call, context)

    def _arrive_batched(self, call: Call) -> None:
        """Keep what the log needs of a batch's call, whose header is the batch's."""
        request: bytes = call.request  # type: ignore[attr-defined]  # it is a BatchedCall
        self._take(call, request, self._services.reader(call.method))

    def _take(self, call: Call, request: bytes, read: Callable[[bytes], Any] | None) -> None:
        facts = self._services.facts(call.method)
        if facts is None:
            return
        # Before anything is placed: what is in no append stops every leader in turn.
        room = self._group.max_entry_bytes - _OVERHEAD_BYTES - len(request)
        if room < 0:
            raise not_by_log(
                RequestTooLarge(
                    f"the request has {len(request)} bytes, and the group's log takes "
                    f"{self._group.max_entry_bytes - _OVERHEAD_BYTES}"
                ),
                call,
            )
        call.max_response_bytes = min(call.max_response_bytes or DEFAULT_RECEIVE_LIMIT, room)
        keys = facts.keys(request, read)
        call.extra = Arrival(
            request,
            keys,
            call.configuration,
            call.first_incomplete,
            call.completed,
            reads=facts.conflicts.read_only,
            deterministic=not facts.conflicts.synced,
            covered=self._services.covers(call, keys),
        )
        # They take effect with the operation's entry, as on every other replica.
        call.first_incomplete, call.completed = 1, ()
        if call.key is None:
            # As the entry has it: of a batch's call its own.
            call.seed = call.stamp[1]
        if call.stamp == (0, 0):
            # A caller without our header: replay needs a stamp all the same.
            call.stamp = (time.time_ns() // 1000, secrets.randbits(64))
