"""The reference page of bounds: each with what sets it, its default, and what is beyond it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import rifl
from rifl._stores.redis import RedisStoreAddress

__all__ = ["BOUNDS", "Bound", "page"]


class Bound(NamedTuple):
    """A row: what is bounded, and what becomes of what is beyond it.

    ``default``: in place of the code's own, where that is None; or what else there is to say of it.
    """

    what: str
    beyond: str
    default: str = ""


_KEYS = "over SQLite half of what is free on the disk, else "
_QUARTER = "a quarter"
# By whose argument, or option, each is.
BOUNDS: Mapping[str, tuple[Callable[..., object], Mapping[str, Bound]]] = {
    "rifl.Bounds": (
        rifl.Bounds,
        {
            "window": Bound("calls of a client without an acknowledgement", "WINDOW_EXCEEDED"),
            "max_waiters": Bound(
                "duplicates that wait, each in a thread", "IN_PROGRESS", "a quarter of the pool"
            ),
            "max_aio_waiters": Bound("duplicates that wait on event loops", "IN_PROGRESS"),
            "max_wait_s": Bound("seconds that a duplicate waits", "IN_PROGRESS"),
            "max_keys": Bound(
                "keys of a client, session or peer; of an address a quarter",
                "WINDOW_EXCEEDED, raised",
                f"{_KEYS}ten million",
            ),
            "max_key_bytes": Bound(
                "bytes of these and their records", "WINDOW_EXCEEDED, raised", f"{_KEYS}512 MiB"
            ),
            "max_answer_bytes": Bound(
                "bytes of a client's kept answers of 16 KiB or more", "WINDOW_EXCEEDED"
            ),
            "max_total_answer_bytes": Bound("the same of all clients", "WINDOW_EXCEEDED"),
            "max_answer_bytes_per_caller": Bound(
                "the same of one caller; 0: any", "WINDOW_EXCEEDED", _QUARTER
            ),
            "max_clients": Bound("leases", "TOO_MANY"),
            "max_clients_per_caller": Bound("leases of one caller; 0: any", "TOO_MANY", _QUARTER),
            "max_batch_items": Bound("calls of a batch", "BATCH_TOO_LARGE: the client splits it"),
            "max_batch_bytes": Bound("bytes of a batch", "BATCH_TOO_LARGE: the client splits it"),
            "max_message_s": Bound(
                "seconds until the message of a call of rifl's own services is there",
                "the call is cancelled",
            ),
        },
    ),
    "rifl.MethodPolicy": (
        rifl.MethodPolicy,
        {
            "max_running": Bound("handlers that run at once", "calls wait", "none"),
            "max_waiting": Bound("calls that wait for a place", "OVERLOADED", "32 for each place"),
            "max_unheard": Bound(
                "coroutine handlers that run for no caller",
                "OVERLOADED",
                "while calls come too late: [by rate](../policies.md#overload)",
            ),
            "max_response_bytes": Bound("bytes of an answer", "RESPONSE_TOO_LARGE"),
            "max_metadata_bytes": Bound("bytes of its metadata", "RESPONSE_TOO_LARGE"),
            "buffer_bytes": Bound(
                "bytes of a request stream that is read before its handler starts",
                "the rest comes while it runs",
            ),
            "batch_concurrency": Bound(
                "coroutine handlers of a batch that run at once", "the others wait"
            ),
            "retention_s": Bound(
                "seconds that a key is kept", "it runs again", "`key_retention_s`"
            ),
        },
    ),
    "rifl.Deduplicator": (
        rifl.Deduplicator,
        {
            "key_retention_s": Bound("seconds that a key is kept", "it runs again"),
            "term_s": Bound("seconds that a lease lasts without a renewal", "LEASE_EXPIRED"),
            "drain_s": Bound("seconds that `close` waits for running calls", "it returns"),
        },
    ),
    "rifl.connect": (
        rifl.connect,
        {
            "window": Bound("a channel's calls without an acknowledgement", "calls wait"),
            "unresolved_limit": Bound(
                "unknown calls that `resolve` can ask about", "the oldest is acknowledged"
            ),
            "unresolved_for": Bound("seconds that it can", "the call is acknowledged"),
        },
    ),
    "rifl.RetryPolicy": (
        rifl.RetryPolicy,
        {
            "budget_tokens": Bound(
                "retries at once to a target; hedges half as many", "they wait", "in a group 100"
            ),
            "budget_ratio": Bound("what an answered call adds", "they wait"),
            "attempt_timeout_s": Bound(
                "seconds of an attempt", "another begins", "none; in a group 1"
            ),
            "max_backoff_s": Bound(
                "seconds between two attempts", "another begins", "in a group 0.2"
            ),
            "max_elapsed_s": Bound("seconds of a call without a deadline", "no attempt begins"),
            "max_attempts": Bound("attempts of a call", "no attempt begins", "none"),
            "silence_s": Bound(
                "seconds without an answer on a connection",
                "[it is checked](../../how-to/deploying.md#idle-connections-that-are-forgotten)",
            ),
        },
    ),
    "a shared store's URL": (
        RedisStoreAddress,
        {
            "timeout_s": Bound(
                "seconds of each wait for the store; with less time, a call's own, but 1",
                "STORE_UNAVAILABLE, or RECORD_PENDING if it ran",
            ),
            "beat_s": Bound(
                "seconds between heartbeats; from one that fails to one that does not calls are "
                "refused",
                "STORE_UNAVAILABLE",
            ),
            "dead_after_s": Bound(
                "seconds without a heartbeat of a replica", "others take its calls over"
            ),
            "max_connections": Bound(
                "connections of a pool", "requests wait", "PostgreSQL, MariaDB: 16"
            ),
        },
    ),
}


def page() -> Iterator[str]:
    """Yield the page's lines."""
    yield from (
        "# Bounds",
        "",
        "On this page you can look up what sets a bound, its default, and what becomes of a call "
        "beyond it. The code writes it: `make reference`.",
        "",
        "After IN_PROGRESS, OVERLOADED, STORE_UNAVAILABLE, RECORD_PENDING, TOO_MANY of leases and",
        "WINDOW_EXCEEDED of a call without a key the SDK sends the call again, within its timeout.",
        "",
        "[What one caller may take](../../how-to/operations.md#what-one-caller-may-take) says what",
        "each costs. Those of a served log are in [its rights' "
        "file](../../how-to/log-operations.md#serve-a-log).",
        "",
        "| of | set by | default | bounds | beyond |",
        "|---|---|---|---|---|",
    )
    for of, (made, rows) in BOUNDS.items():
        given = inspect.signature(made).parameters
        shown = f"`{of}`" if of.startswith("rifl.") else of
        for name, row in rows.items():
            own = given[name].default
            default = "; ".join(each for each in (_said(own), row.default) if each)
            yield f"| {shown} | `{name}` | {default} | {row.what} | {row.beyond} |"


def _said(default: object) -> str:
    if default is None:
        return ""
    whole = isinstance(default, int | float) and default == int(default)
    return f"{default:,.0f}" if whole else str(default)
