"""A log that an operator declares restored, or to have lost what it lacks."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import NamedTuple

from _rifl_ground.log import get_logger
from sharedlog._core.incarnation import new_log
from sharedlog._core.restoring import restore
from sharedlog._engines.opening import accept_loss as accept_in_store
from sharedlog._log.observing import told_name
from sharedlog._log.opening import open_log, patiently

_log = get_logger("sharedlog")


class RestoredLog(NamedTuple):
    """The incarnation from now on, how many producers were retired, and why it had stopped."""

    incarnation: str
    producers: int
    lost: str


def restore_log(url: str, timeout: timedelta) -> RestoredLog:
    """Declare a log restored from a backup, whether or not its store noticed."""
    incarnation = secrets.token_hex(8)
    keys = new_log(incarnation)
    lost = patiently(url, timeout, lambda: accept_in_store(url, keys))
    return _restored(url, timeout, incarnation, lost)


def accept_loss(url: str, timeout: timedelta) -> RestoredLog | None:
    """Have a log go on that stopped since it lacks something; None: it had not, and is unchanged.

    As restored: what is lost was known to others.
    """
    incarnation = secrets.token_hex(8)
    keys = new_log(incarnation)
    lost = patiently(url, timeout, lambda: accept_in_store(url, keys))
    return _restored(url, timeout, incarnation, lost) if lost else None


def _restored(url: str, timeout: timedelta, incarnation: str, lost: str) -> RestoredLog:
    with open_log(url, timeout=timeout) as log:
        found = log._run(restore(incarnation))
    _log.warning(
        "log_restored",
        log=told_name(url),
        incarnation=incarnation,
        producers=found.producers,
        lost=lost,
    )
    return RestoredLog(incarnation, found.producers, lost)
