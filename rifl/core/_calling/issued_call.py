"""The issued call: an identity, and what all its attempts share (RIFL §3.2; DESIGN §3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rifl.core._calling.client_lease import ClientLease
from rifl.core._shared.identity import RpcId


class IssuedCall:
    """A call with an identity: what all its attempts share, and its latest header.

    ``attempt`` numbers the latest attempt. ``may_have_run`` becomes true with
    the first attempt whose answer did not say otherwise; while it is false, no attempt
    that was answered has run. ``try_ms``: for how many milliseconds from when this attempt is sent
    the call may be tried, 0: until the attempt's deadline. ``stamp`` is the client's time in
    microseconds and a random seed. ``decode`` belongs to the shell; ``method`` is what a
    resolution names.
    """

    # What most calls leave unchanged; set on the class, not for every call. A keyed call has no
    # seq: its 0 is one that no tracker issues.
    key: bytes | None = None
    attempt = 1
    may_have_run = False
    try_ms = 0
    decode: Any = None
    method = ""

    def __init__(
        self,
        lease: ClientLease,
        seq: int,
        first_incomplete: int,
        completed: Sequence[tuple[int, int]],
        stamp: tuple[int, int],
    ) -> None:
        self.lease = lease
        self.seq = seq
        self.first_incomplete = first_incomplete
        self.completed = completed
        self.stamp = stamp

    @property
    def rpc_id(self) -> RpcId:
        """The identity as the application sees it."""
        if self.key is not None:
            return RpcId(self.lease.client_id, key=self.key)
        return RpcId(self.lease.client_id, self.seq)
