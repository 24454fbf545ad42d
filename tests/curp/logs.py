"""Logs for tests: created as an operator does, once."""

from __future__ import annotations

from curp.log import create_log, open_engine
from curp.log._creation import new_log
from curp.log._engine import LogEngine
from curp.log._opening import open_new

__all__ = ["created", "created_older", "opened_new"]


def created(url: str) -> str:
    """Create the log at a URL; return the URL."""
    create_log(url)
    return url


def created_older(url: str) -> str:
    """Create a log of format 1 at a URL, as earlier releases did; return the URL."""
    open_new(url, new_log(), layout=1).close()
    return url


def opened_new(url: str) -> LogEngine:
    """Create the log at a URL, and open it."""
    return open_engine(created(url))
