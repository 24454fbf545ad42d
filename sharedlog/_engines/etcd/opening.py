"""Logs in etcd by their URL (see ``EtcdAddress``)."""

from __future__ import annotations

from collections.abc import Mapping

from sharedlog._engines.etcd.address import EtcdAddress
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


def _open(url: str, new: Mapping[str, bytes] | None) -> EtcdEngine:
    base, name, options = log_name(url)
    return EtcdEngine(EtcdAddress.parse(base, options, LOG, prefix=_PREFIX), name, new=new)
