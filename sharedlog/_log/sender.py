"""The acts of one producer: each of known fate before the next is sent."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.log import get_logger
from sharedlog._core.errors import (
    AnswerGone,
    LogError,
    OutOfOrder,
    ProducerRetired,
    SeqReused,
    SpanGone,
)
from sharedlog._core.producers import ProducerId, grant
from sharedlog._core.spans import retire
from sharedlog._core.steps import Rule
from sharedlog._log.place import Place, forked
from sharedlog._log.resending import Unknown, not_sent, until_known

_T = TypeVar("_T")
_log = get_logger("sharedlog")
# After these a producer appends nothing more; another one begins anew. Not after
# ``UnknownProducer``: such a log is not the one that was opened, which is for the caller to learn.
_OVER = (AnswerGone, OutOfOrder, ProducerRetired, SeqReused, SpanGone)


@dataclass
class _Act:
    rule: Callable[[], Rule[Any]]
    done: Callable[[Any], None]
    # Of the producer, once it is done.
    seq: int
    # An attempt was not answered.
    unknown: bool = False
    # Its producer was retired for it.
    given_up: bool = False


class Sender:
    """A producer and its highest seq; granted when it is first needed. One thread at a time."""

    def __init__(self, place: Place) -> None:
        """Nothing is asked of the log yet."""
        self._place = place
        self._act: _Act | None = None
        self.producer: ProducerId | None = None
        self.seq = 0
        refuse_in_children(self, forked)

    def granted(self) -> ProducerId:
        """Return the producer; raises ``LogUnavailable`` with ``appended`` False."""
        if self.producer is None:
            try:
                found = until_known(self._place, lambda: grant(secrets.token_bytes(16)))
            except Unknown as error:
                # A producer that is never used, maybe.
                raise not_sent(error) from error
            self.producer, self.seq = found, 0
        return self.producer

    def append(
        self,
        rule: Callable[[ProducerId, int], Rule[_T]],
        done: Callable[[ProducerId, _T], None],
    ) -> None:
        """Send what is the producer's next seq; ``done`` is called with the answer.

        Raises ``Unknown`` if there is none in time; ``settle`` then asks again.
        """
        producer, seq = self.granted(), self.seq + 1
        self._send(_Act(lambda: rule(producer, seq), lambda found: done(producer, found), seq))

    def send(self, rule: Callable[[], Rule[_T]], done: Callable[[_T], None]) -> None:
        """Send what has an identity of its own, and else as ``append``."""
        self._send(_Act(rule, done, self.seq))

    def settle(self) -> None:
        """Ask again for what was not answered, if there is something; raises as ``append``."""
        act = self._act
        if act is None:
            return
        try:
            found = until_known(
                self._place, act.rule, unknown=act.unknown, full=lambda: self._give_up(act)
            )
        except Unknown:
            act.unknown = True
            raise
        except LogError as error:
            if isinstance(error, _OVER):
                self.producer = None
            self._act = None
            raise
        except BaseException:
            # A signal's.
            act.unknown = True
            raise
        # Until all is noted the act is asked for again, should a signal come.
        act.unknown = True
        act.done(found)
        self.seq = act.seq
        self._act = None

    def _give_up(self, act: _Act) -> bool:
        """Have an act of unknown outcome be in the log by now, or never; True: it is not there.

        Else what is smaller would wait behind it until there is room. A producer is retired
        without an entry, unless it has something pending.
        """
        producer = self.producer
        if producer is None or act.given_up or act.seq == self.seq:
            return False
        try:
            highest = self._place.run(retire(producer.id))
        except LogError:
            return False
        act.given_up = True
        if highest >= act.seq:
            return False
        self.producer = None
        _log.warning("append_given_up", log=self._place.name, producer=producer.id, seq=act.seq)
        return True

    def _send(self, act: _Act) -> None:
        if self._act is not None:
            self.settle()
        self._act = act
        self.settle()
