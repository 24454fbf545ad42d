"""The rounds of a duty: a thread that does it whenever it has it (DESIGN-LOG §12, L4)."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from _rifl_ground.log import get_logger
from sharedlog._core.duty import WHO_BYTES, Duty
from sharedlog._core.errors import InvalidRequest, LogError, LogStopped, LogUnavailable
from sharedlog._core.fences import Fence
from sharedlog._engines.elsewhere import refuse_served
from sharedlog._log.place import Place

_T = TypeVar("_T")
_log = get_logger("sharedlog")


class Rounds:
    """Looks again and again whether it has a duty of the log, and does it then.

    ``act`` is called with the fence to act under, and the time by ``clock``, which must not
    jump; ``failed`` with the error of a round. An error of ``for_good`` ends the rounds. After any
    other error that does not pass, this process stands for the duty again when ``patience_s`` is
    over. Either way it gives the duty up: another process may be able to do it.
    """

    def __init__(
        self,
        place: Place,
        name: str,
        every_s: float,
        patience_s: float,
        act: Callable[[Fence, float], None],
        failed: Callable[[LogError], None],
        clock: Callable[[], float] = time.monotonic,
        for_good: Sequence[type[LogError]] = (),
    ) -> None:
        """It begins by ``start``, or with each ``round``. ``InvalidRequest`` for a served log."""
        refuse_served(place.engine)
        self._place = place
        # As long as a thread can wait at most.
        self._every_s = min(every_s, threading.TIMEOUT_MAX)
        self._patience_s = min(patience_s, threading.TIMEOUT_MAX)
        self._for_good = tuple(for_good)
        self._act = act
        self._failed = failed
        self._clock = clock
        self._duty = Duty(name, secrets.token_bytes(WHO_BYTES), patience_s)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sharedlog-{name}", daemon=True)
        # Whether this one had the duty, as it last knew.
        self.works = False
        # What ended the rounds for good.
        self.error: LogError | None = None

    @property
    def another_works(self) -> bool:
        """Whether another one was seen to do it since this one last did."""
        return self._duty.other_beats

    def start(self) -> None:
        """Have a thread make the rounds, until it is closed, or the log is; once."""
        if self._thread.ident is not None or self._closing.is_set():
            raise InvalidRequest("this begins once, and not when it was closed: make another one")
        self._thread.start()

    def round(self) -> None:
        """Make one. Raises what ended them for good, again and again."""
        if self.error is not None:
            raise self.error
        now_s = self._clock()
        fence = self._place.run(self._duty.take(now_s))
        self.works = fence is not None
        if fence is None:
            return
        try:
            self._act(fence, now_s)
        except self._for_good as error:
            self.error = error
            self._leave()
            raise

    def close(self) -> None:
        """Stop, and let another one take over at once; idempotent. Waits for what runs."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        elif self.works:
            self._leave()

    def _run(self) -> None:
        while not self._place.closing.is_set():
            pause_s = self._every_s
            try:
                self.round()
            except LogStopped as error:
                self.works = False
                self._failed(error)
                return
            except LogError as error:
                self._failed(error)
                if self.error is not None:
                    return
                if self.works and not isinstance(error, LogUnavailable):
                    self._leave()
                    pause_s = self._patience_s
            if self._closing.wait(pause_s):
                break
        self._leave()

    def _leave(self) -> None:
        self.works = False
        try:
            self._place.run(self._duty.leave())
        except LogError as error:
            # Others take over in time.
            if not self._place.closing.is_set():
                self._failed(error)


def tell(told: Callable[[_T], None] | None, found: _T) -> None:
    """Call what a user gave to be told by; what that raises ends no round."""
    if told is None:
        return
    try:
        told(found)
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises
        _log.error("observer_failed", method="told", error=repr(error))
