"""The client's way to a group, loaded by rifl when a server names it (DESIGN §7).

Nothing here is called by applications, but for ``statistics``. When an answer is final says
``curp._core.group_call``.

- ``_sync_path``, ``_aio_path``: the path of a channel, to the leader and its witnesses at once.
- ``_attempt``: one attempt; sent by ``_sync_multicallable`` and ``_sync_recorded_call`` or
  ``_aio_recorded_call``, or to the leader alone by ``_leader_call``; ``_attempt_ends``: how it ends
  without an answer of the leader's.
- ``_record``, ``_sync_records``, ``_aio_records``: records on their way to witnesses.
- ``_group_knowledge``: what a client knows of its group; ``_leader_search``: who leads.
- ``_caller_keys``: conflict keys; ``_messages``, ``_stubs``: what else is sent, and by which calls;
  ``_own_requests``: by which metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from curp.client._aio_path import AioPath
from curp.client._caller_keys import CallerKeys
from curp.client._group_knowledge import GroupStatistics
from curp.client._sync_path import SyncPath
from rifl._client.grpc_channels import Connect
from rifl._client.own_metadata import MetadataFunction
from rifl._client.settings import DEFAULT_GROUP_PATH

__all__ = ["AioPath", "GroupStatistics", "SyncPath", "open_path", "statistics"]


def open_path(
    channel: Any,
    connect: Connect[Any],
    conflict_keys: Mapping[str, Callable[[Any], Any]],
    group_path: str = DEFAULT_GROUP_PATH,
    metadata: MetadataFunction | None = None,
) -> SyncPath | AioPath:
    """Return the group path over a sync or an aio channel (see ``rifl._client.state``)."""
    if isinstance(channel, grpc.aio.Channel):
        return AioPath(channel, connect, CallerKeys(conflict_keys), group_path, metadata=metadata)
    return SyncPath(channel, connect, CallerKeys(conflict_keys), group_path, metadata=metadata)


def statistics(channel: Any) -> GroupStatistics | None:
    """Count how the calls of a ``rifl.connect`` channel became final; None: not at a group."""
    path = channel._client.path
    return None if path is None else path.statistics()
