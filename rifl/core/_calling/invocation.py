"""The invocation: a call, or a batch, before it has an identity (DESIGN §3)."""

from __future__ import annotations

from typing import Any, NamedTuple

# In place of a key: the call's metadata name it, by the plain header. No key is empty.
OWN_HEADER = b""


class Invocation(NamedTuple):
    """What is asked for, and until when; times in seconds of the session's clock.

    ``key`` is the caller's own name for the call, ``OWN_HEADER``, or None. ``stream``: one
    side is a stream. ``hedge_after_s``: without an answer for so long, a second attempt is sent
    beside the first; None: never. ``stamp`` is the client's time in microseconds and a random
    seed. ``decode``, which reads the answer's bytes, and ``begun``, which the observer wants
    back at the end, are the shell's.
    """

    method: str
    started_at: float
    deadline: float | None = None
    key: bytes | None = None
    stream: bool = False
    hedge_after_s: float | None = None
    stamp: tuple[int, int] = (0, 0)
    decode: Any = None
    begun: Any = None

    @property
    def expired(self) -> bool:
        """Whether its time had passed when it was made: the caller's timeout is not positive."""
        return self.deadline is not None and self.deadline <= self.started_at
