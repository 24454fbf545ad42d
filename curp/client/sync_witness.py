"""A sync channel to one witness, and the futures of records sent there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import grpc

from curp.client.attempt import GroupAttempt
from curp.client.stubs import record_stub
from curp.core.group_call import Step

__all__ = ["NotSent", "SyncWitness", "cancel_all", "record_done"]


class SyncWitness:
    """A channel to one witness, and its Record."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.record: Any = record_stub(channel)
        self._watch: Any = channel.unary_stream("/curp.v1.Witness/Watch")
        self._watching: Any = None
        self.stay_awake()

    def stay_awake(self) -> None:
        """Keep gRPC's thread for this channel, which it ends when no call is under way.

        To begin a thread for each record of a caller that is alone takes longer than
        to send it.
        """
        if self._watching is None or self._watching.done():
            self._watching = self._watch(b"")


class NotSent:
    """A record that no witness has: as a future that was cancelled."""

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back at once."""
        callback(self)

    def cancelled(self) -> bool:
        """It was."""
        return True

    def done(self) -> bool:
        """It is."""
        return True


def record_done(attempt: GroupAttempt, address: str, record: Any) -> Step:
    """Take the end of a record."""
    if record.cancelled():
        return attempt.not_recorded()
    if record.code() is not grpc.StatusCode.OK:
        return attempt.witness_failed(address)
    return attempt.witness_answered(address, record.result())


def cancel_all(records: Iterable[Any]) -> None:
    """Let go of those that are still under way."""
    for record in records:
        if not record.done():
            record.cancel()
