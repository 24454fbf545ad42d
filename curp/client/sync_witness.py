"""A sync channel to one witness."""

from __future__ import annotations

import grpc

from curp.client.sync_records import SyncRecords
from curp.core.record_line import Smoothed

__all__ = ["SyncWitness"]


class SyncWitness:
    """A channel to one witness, and its stream of records."""

    def __init__(self, channel: grpc.Channel, leader: Smoothed) -> None:
        self.channel = channel
        self.records = SyncRecords(channel, leader)

    def close(self) -> None:
        """End the stream, and the channel."""
        self.records.close()
        self.channel.close()
