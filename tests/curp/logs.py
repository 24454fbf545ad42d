"""Logs for tests: created as an operator does, once."""

from __future__ import annotations

from curp.log import create_log, open_engine
from curp.log._commits import GroupLog

__all__ = ["created", "opened_new"]


def created(url: str) -> str:
    """Create the log at a URL; return the URL."""
    create_log(url)
    return url


def opened_new(url: str) -> GroupLog:
    """Create the log at a URL, and open it."""
    return open_engine(created(url))
