"""Dead letters for readers: of a player's target (P7), or of a consumer (T5).

A target's has the message's envelope as its value (``player/deadletters``). A consumer's is the
message itself, with headers more: ``said``.
"""

from __future__ import annotations

from typing import NamedTuple

from sharedlog._core.envelope import About, pack
from sharedlog._core.message import Message
from sharedlog._core.position import Position
from sharedlog._core.sealing import Seals
from sharedlog._core.streams import stream_of, substream_number, tag_of

_PREFIX = "dead-letter-"
_CUT = f"{_PREFIX}cut"


class DeadLetter(NamedTuple):
    """One. ``letter``: itself; the rest is of the message that was given up.

    ``consumer``: by which one; "": by ``target`` of ``player``. ``attempts``: of a consumer;
    ``number``: of a target, in its index; ``by``: whom, of a target. ``cut``: the message was too
    large to stand in it, or could not be read: it is where ``position`` says.
    """

    letter: Message
    tag: str
    position: Position
    reason: str
    consumer: str = ""
    attempts: int = 0
    player: str = ""
    target: str = ""
    number: int = 0
    by: str = ""
    cut: bool = False

    def message(self, seals: Seals | None) -> Message:
        """Return the message as it was, unless it is ``cut``."""
        outer, stream, at = self.letter, stream_of(self.tag), substream_number(self.tag)
        at_us = int(outer.append_time.timestamp() * 1_000_000)
        if not self.consumer:
            return Message(outer.value, self.position, stream, at, at_us, seals=seals)
        headers = {
            name: value for name, value in outer.headers.items() if not name.startswith(_PREFIX)
        }
        about = About(headers, outer.content_type, outer.schema_name, method=outer.method)
        envelope = pack(outer.value, outer.key, about, at_us)
        return Message(envelope, self.position, stream, at, at_us)


def said(
    consumer: str, tag: str, position: Position, attempts: int, why: str, *, cut: bool
) -> dict[str, str]:
    """Return the headers of a consumer's dead letter."""
    found = {
        f"{_PREFIX}consumer": consumer,
        f"{_PREFIX}position": f"{stream_of(tag)} {position}",
        f"{_PREFIX}attempts": str(attempts),
        f"{_PREFIX}error": why,
    }
    return found | {_CUT: "1"} if cut else found


def read(letter: Message) -> DeadLetter | None:
    """Return a message of a stream of dead letters as one; None: it is none.

    Raises ``SealedMessage``.
    """
    headers = {name: value.decode(errors="replace") for name, value in letter.headers.items()}
    try:
        if f"{_PREFIX}consumer" not in headers:
            return DeadLetter(
                letter,
                headers["tag"],
                Position.parse(headers["position"]),
                headers["reason"],
                player=headers["player"],
                target=headers["target"],
                number=int(headers["number"]),
                by=headers["by"],
                cut=not letter.value,
            )
        stream, _, place = headers[f"{_PREFIX}position"].rpartition(" ")
        position = Position.parse(place)
        return DeadLetter(
            letter,
            tag_of(stream, position.substream),
            position,
            headers[f"{_PREFIX}error"],
            consumer=headers[f"{_PREFIX}consumer"],
            attempts=int(headers[f"{_PREFIX}attempts"]),
            cut=_CUT in headers,
        )
    except (KeyError, ValueError):
        return None
