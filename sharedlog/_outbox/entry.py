"""``OutboxEntry`` and ``New``: what is written into an outbox, and why it was not."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from sharedlog._core.errors import LogError, LogForked, NoSuchOutbox


class OutboxEntry(NamedTuple):
    """A message that is put into an outbox; ``content``: what tells it from others."""

    name: str
    incarnation: str
    tag: str
    envelope: bytes
    content: bytes


class New(NamedTuple):
    """An outbox that is made; ``incarnation``: of the log that it is for."""

    name: str
    incarnation: str


def id_of_a_new_one() -> str:
    """Draw what tells an outbox from those of other databases, copies of this one apart."""
    return secrets.token_hex(8)


def judged(found: Sequence[Any] | None, what: OutboxEntry | New) -> LogError:
    """Return why nothing was written, given the outbox's row."""
    if found is None:
        return NoSuchOutbox(
            f"the connection's database has no outbox {what.name!r}: create_outbox makes it"
        )
    return LogForked(
        f"the outbox {what.name!r} is for a log of incarnation {found[0]}, not {what.incarnation}: "
        "it is another one, or was restored and declared so"
    )
