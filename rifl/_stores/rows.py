"""Rows beside a store's records: text to bytes, moved only from what they are known to be (§6).

A row is the position of a follower that hands work to a server's handlers one step after the
other. What the completion record is to a call, the move of such a row is to a step. The move
is alone, or in the transaction of an atomic handler, in the record's place.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._shared.call import Call


class Move(NamedTuple):
    """One row's next value, if it is ``expected`` now (None: not there)."""

    key: str
    expected: bytes | None
    value: bytes


class RowCall(Call):
    """A run of a handler without a gRPC caller: it moves rows in a record's place.

    ``moves``: what an atomic handler's transaction makes of the rows, all or none; ``subject``:
    what it is about, for the code that began it. ``more``: another run is about to come into the
    same shared transaction; the code that began the runs waits for the commit, not the handler.
    """

    def __init__(
        self,
        method: str,
        name: bytes,
        moves: Sequence[Move] = (),
        subject: Any = None,
        *,
        more: bool = False,
    ) -> None:
        super().__init__(0, b"", None, name, method=method)
        self.moves = tuple(moves)
        self.subject = subject
        self.more = more
        # Once it has begun; and whether it was given up, and is to commit nothing.
        self.begun: Attempt | None = None
        self.revoked = False


class SoleProcess:
    """The process of a store that one process has open at a time: every other one has ended."""

    def __init__(self) -> None:
        self.process = secrets.token_hex(8)

    def beats(self, processes: Sequence[str]) -> list[int]:
        """See ``ConditionalRows``."""
        return [int(each == self.process) for each in processes]


class ConditionalRows(Protocol):
    """Rows of one store. Any thread. Keys are texts without a zero character."""

    @property
    def store_id(self) -> str:
        """Drawn when the store was made; another one begins without rows, or with a backup's."""

    @property
    def process(self) -> str:
        """The process that has the store open: drawn when it opens, and never again."""

    def beats(self, processes: Sequence[str]) -> list[int]:
        """Return of each process 0 if it has ended, else a number that changes while it lives.

        The processes have had this store open, as ``process`` said. A shared store tells by their
        presence in it, some seconds after one has crashed. Blocks. Raises ``StoreUnavailable``.
        """

    def get(self, keys: Iterable[str]) -> Mapping[str, bytes | None]:
        """Return what is durable, None for rows that are not there. Blocks.

        Raises ``StoreUnavailable``.
        """

    def move(self, moves: Sequence[Move]) -> Later:
        """Move rows durably, all or none: true, or false where one was not as expected.

        Raises ``StoreUnavailable``: none was moved; or ``RecordPending``: that is unknown.
        """

    def begin(self, call: RowCall, policy: MethodPolicy) -> Attempt:
        """Begin a run, which counts as one that runs until ``end``.

        Raises what new calls are refused with (``Draining``, ``StoreUnavailable``).
        """

    def judge(self, error: BaseException) -> bool | None:
        """Say whether an error that left an atomic handler is the handler's; see ``counting``."""

    def end(self, attempt: Attempt) -> None:
        """End a run that no caller waits for any more."""
