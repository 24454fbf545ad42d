"""The entries of a group's log: operations with their records, and leases (DESIGN §7)."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from _rifl_ground.texts import hides
from rifl.core._shared.record import CompletionRecord

# The bytes of an operation beside its long fields, and of each further field.
_ENTRY_BYTES = 512
_FIELD_BYTES = 12


class SetAside(NamedTuple):
    """Why a call has the answer *unknown*, which came from no handler.

    ``who`` and ``why``: the operator's; empty if it was certain that no caller had an answer.
    ``lsn``: of its operation, which is not replayed any more; 0 if it is not in the log.
    """

    deaths: int
    who: str = ""
    why: str = ""
    lsn: int = 0


class Operation(NamedTuple):
    """A call that was executed, with its completion record.

    ``seq`` or ``key`` is its identity under ``client_id`` (negative for a namespace of
    plain keys). ``stamp`` is the call's time in microseconds and its random seed.
    ``keys`` are the hashes of its conflict keys; empty: it conflicts with everything.
    ``first_incomplete`` and ``completed`` are the call's acknowledgements, which take
    effect with the entry. ``refusal``: the handler did not run, there is only an answer.
    ``application_version``: of the replica that ran it. ``set_aside``: why it is a refusal,
    if the reason is that it killed the processes that ran it.
    """

    client_id: int
    seq: int | None
    key: bytes | None
    method: str
    request: bytes
    answer: CompletionRecord
    stamp: tuple[int, int] = (0, 0)
    keys: frozenset[int] = frozenset()
    fingerprint: bytes | None = None
    first_incomplete: int = 1
    completed: tuple[tuple[int, int], ...] = ()
    peer: bytes = b""
    refusal: bool = False
    application_version: int = 0
    set_aside: SetAside | None = None

    @property
    def identity(self) -> int | bytes:
        """What is unique within the client id."""
        return self.seq if self.key is None else self.key  # type: ignore[return-value]

    @property
    def at_most_bytes(self) -> int:
        """How long the entry is at most, as the log has it."""
        answer = self.answer
        metadata = (*answer.initial_metadata, *answer.trailing_metadata)
        texts = len(self.method) + len(answer.details)
        return (
            _ENTRY_BYTES
            + len(self.request)
            + len(answer.response or b"")
            + 4 * texts
            + sum(len(key) + len(value) + _FIELD_BYTES for key, value in metadata)
            + _FIELD_BYTES * (len(self.keys) + 2 * len(self.completed))
            + len(self.fingerprint or b"")
            + len(self.peer)
            + (0 if self.set_aside is None else 4 * sum(map(len, self.set_aside[1:3])))
        )


class ClientRegistered(NamedTuple):
    """Stands before the first operation of a client, or of a session.

    ``holder``: whom a client's lease counts for, as ``lease_server`` names it.
    """

    client_id: int
    holder: bytes = b""


class ClientRemoved(NamedTuple):
    """Stands behind the last operation of a client: its records go (invariant 7)."""

    client_id: int


class CallsAcknowledged(NamedTuple):
    """A client's renewal acknowledged calls: the records that are kept of them go."""

    client_id: int
    first_incomplete: int
    completed: tuple[tuple[int, int], ...] = ()


@hides("secret")
class SessionPut(NamedTuple):
    """A named session as ``lease_server`` keeps it; ``state`` is that enum's value."""

    client_id: int
    name: str
    peer: bytes
    state: str
    retention_s: float
    changed_at_unix_s: float
    secret: bytes = b""
    source: str = ""
    writer: bytes = b""


class SessionForgotten(NamedTuple):
    """The session's name may be opened anew."""

    client_id: int


@hides("secret")
class SessionsRekeyed(NamedTuple):
    """Sessions, open or ended, open by another secret from here on; ids not known are fine."""

    client_ids: tuple[int, ...]
    secret: bytes


class IdsReserved(NamedTuple):
    """Client ids up to ``last_id`` may be granted."""

    last_id: int


@hides("secrets")
class SecretsPut(NamedTuple):
    """The secrets of client tokens as (key id, value), newest first."""

    secrets: tuple[tuple[int, bytes], ...]


class LeaderStarted(NamedTuple):
    """The first entry of every leader: who it is, and how much it replayed from a witness.

    ``accepted_loss``: which operator let it begin without a witness, and why; else empty.
    """

    configuration: int
    replica: str
    replayed: int
    accepted_loss: str = ""


class ApplicationVersion(NamedTuple):
    """The version of the application from here on; a replica of an older one stops here.

    ``who``: the operator who finalized the upgrade; empty: what the log began with.
    """

    version: int
    who: str = ""


Entry: TypeAlias = (
    Operation
    | ClientRegistered
    | ClientRemoved
    | CallsAcknowledged
    | SessionPut
    | SessionForgotten
    | SessionsRekeyed
    | IdsReserved
    | SecretsPut
    | LeaderStarted
    | ApplicationVersion
)
