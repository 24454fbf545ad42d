"""A sync channel to one witness."""

from __future__ import annotations

import grpc

from curp._core.pending_records import QuickDuration
from curp.client._sync_records import SyncRecords


class SyncWitness:
    """A channel to one witness, and its stream of records."""

    def __init__(self, channel: grpc.Channel, leader: QuickDuration) -> None:
        self.channel = channel
        self.records = SyncRecords(channel, leader)

    def close(self) -> None:
        """End the stream, and the channel."""
        self.records.close()
        self.channel.close()
