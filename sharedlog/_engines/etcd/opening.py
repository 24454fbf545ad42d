"""Logs in etcd by their URL (see ``EtcdAddress``)."""

from __future__ import annotations

from collections.abc import Mapping

from sharedlog._engines.etcd.address import EtcdAddress
from sharedlog._engines.etcd.connection import accept_cluster
from sharedlog._engines.etcd.defragmenting import ClusterMember, defragment
from sharedlog._engines.etcd.engine import EtcdEngine
from sharedlog._engines.names import log_name
from sharedlog._engines.owner import LOG

_PREFIX = "sharedlog"


def create_log(url: str, keys: Mapping[str, bytes]) -> EtcdEngine:
    """Create the log that the URL names, with these keys, in one step; raises ``LogExists``."""
    return _open(url, keys)


def open_log(url: str) -> EtcdEngine:
    """Open the log that the URL names; raises ``NoSuchLog``. ``log``: its name."""
    return _open(url, None)


def accept_loss(url: str, keys: Mapping[str, bytes]) -> str:
    """Have a log go on in a cluster that was restored; why it stopped, empty if it had not.

    ``keys`` are put in the same step: a new incarnation, since what is lost was known to others.
    """
    address, name = parts_of(url)
    return accept_cluster(address, name, keys)


def defragment_at(url: str) -> list[ClusterMember]:
    """Give back to the disks what the cluster of a URL has compacted; see ``defragment``."""
    return defragment(parts_of(url)[0])


def parts_of(url: str) -> tuple[EtcdAddress, str]:
    """Return where the log of a URL is, and its name; raises ``InvalidRequest``."""
    base, name, options = log_name(url)
    return EtcdAddress.parse(base, options, LOG, prefix=_PREFIX), name


def _open(url: str, new: Mapping[str, bytes] | None) -> EtcdEngine:
    address, name = parts_of(url)
    return EtcdEngine(address, name, new=new)
