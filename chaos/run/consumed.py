"""Effects of a consumer's messages, their outputs and calls, as its processes and judge know them.

Each effect says how many there were before it in its substream, and hashes all of them: what is
not that of one run over the committed messages shows in every later one. Where the store is Redis,
from which a handler would read in transactions of one message, it stands for itself.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

__all__ = ["COPIES", "NAME", "NOTE", "Effect", "following", "is_called"]

# The consumer, what it publishes to, and the method that it calls.
NAME, COPIES, NOTE = "chaos", "copies", "/chaos.Ledger/Note"
# Of so many messages it calls for one.
_CALLED = 5


class Effect(NamedTuple):
    """Of one message: the how manieth of its substream; the hash; what its call was answered."""

    tag: str
    number: int
    message: str
    chain: str
    answer: str

    @property
    def text(self) -> str:
        """What is published of it."""
        return " ".join((self.tag, str(self.number), self.message, self.chain, self.answer or "-"))

    @classmethod
    def told(cls, text: str) -> Effect:
        """Return what a published text tells."""
        tag, number, message, chain, answer = text.split(" ")
        return cls(tag, int(number), message, chain, "" if answer == "-" else answer)


def following(tag: str, before: Effect | None, message: str, answer: str) -> Effect:
    """Return the effect of the message that follows another one's."""
    number, chain = (0, "") if before is None else (before.number, before.chain)
    text = f"{chain} {message} {answer}"
    now = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return Effect(tag, number + 1, message, now, answer)


def is_called(message: str) -> bool:
    """Say whether the service is called for a message."""
    return hashlib.blake2b(message.encode(), digest_size=1).digest()[0] % _CALLED == 0
