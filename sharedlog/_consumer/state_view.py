"""Views of the states that consumers keep in the log, for programs that only read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from _rifl_ground.forks import this_process
from _rifl_ground.owned_lock import OwnedLock
from sharedlog._consumer.state import decoded
from sharedlog._core.consumer.changelog import Changelog
from sharedlog._core.consumer.members import check_follows
from sharedlog._core.errors import InvalidRequest, ReentrantUse
from sharedlog._core.steps import tried
from sharedlog._core.streams import check_name, substream_of, tag_of
from sharedlog._engines.elsewhere import refuse_served
from sharedlog._log.following import chosen_substreams
from sharedlog._log.log import Log
from sharedlog._log.place import forked
from sharedlog._log.resending import until_answered


class StateView(Mapping[str, Any]):
    """A read-only view of one substream's ``effects.state``, as of the last ``refresh``.

    ``name``: of a consumer whose store is the log; ``stream``: one that it follows. The substream
    is that of the messages with ``key``, or ``substream``. All of it is in memory. Any thread; a
    refresh blocks reads of other threads. It is no part of the consumer, and keeps nothing from
    being trimmed.

    It is empty until the consumer has committed something there. Raises ``InvalidRequest`` for a
    stream that the consumer does not follow, and for a log over gRPC; ``NoSuchStream``; and as
    ``refresh``.
    """

    def __init__(
        self,
        log: Log,
        name: str,
        stream: str,
        *,
        key: bytes | str | None = None,
        substream: int | None = None,
    ) -> None:
        """Read the state; see the class."""
        check_name(name, "consumer")
        place = log._place
        refuse_served(place.engine)
        found = log._placing.stream(stream)
        if key is not None and substream is None:
            data = key.encode() if isinstance(key, str) else key
            self.substream = substream_of(data, found.substreams)
        elif substream is not None and key is None:
            (self.substream,) = chosen_substreams(found, (substream,))
        else:
            raise InvalidRequest("a state is of one substream: give its number, or a message's key")
        until_answered(place, lambda: check_follows(name, stream))
        self._place = place
        tag = tag_of(stream, self.substream)
        self._changelog = Changelog(name, tag, place.incarnation, place.seals)
        # A refresh applies a transaction's changes one by one.
        self._lock = OwnedLock(ReentrantUse)
        self._process = this_process()
        self.refresh()

    def refresh(self) -> None:
        """Read on to what is committed now: of each transaction all changes or none.

        Raises ``LogUnavailable`` after the log's timeout, and can be called again. Raises
        ``TrimmedLog`` if the consumer's hold was forgotten, ``SealedMessage``, ``CorruptLog``,
        and ``NewerFormat``.
        """
        with self._locked():
            while until_answered(self._place, lambda: tried(self._changelog.read())):
                pass

    def __getitem__(self, key: str) -> Any:
        """Return a copy of the value of a key; raises ``KeyError``."""
        with self._locked():
            value = self._changelog.table[key]
        return decoded(value)

    def __contains__(self, key: object) -> bool:
        """Say whether there is a value."""
        with self._locked():
            return key in self._changelog.table

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys of this moment."""
        with self._locked():
            return iter(list(self._changelog.table))

    def __len__(self) -> int:
        """Return the number of keys."""
        with self._locked():
            return len(self._changelog.table)

    def __repr__(self) -> str:
        """Tell its size, not its content."""
        return f"<StateView of {len(self)} keys>"

    def _locked(self) -> OwnedLock:
        """Return the lock, which a forked child inherits as it was; raises ``LogStopped``."""
        if this_process() is not self._process:
            raise forked()
        return self._lock
