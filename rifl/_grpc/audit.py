"""The audit of callers: whom a service does not let in, and what its operators do."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from _rifl_ground.audit import acted, acting
from _rifl_ground.log import get_logger
from _rifl_ground.refusals import Denied
from rifl._grpc.certificates import names_of
from rifl._grpc.source import source_of

_log = get_logger("rifl.audit")

# Of an address the first, tenth, hundredth refusal is told, counted anew after so long.
WINDOW_S = 600.0
# Addresses that are told apart, for each reason one; further ones count together.
MOST = 1_000
OTHERS = "others"


class RefusalTimes:
    """Decides which refusals are told. Pure.

    It keeps at most ``most`` addresses, and one more for each reason, and tells of each the first
    refusal, the tenth, the hundredth.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        # Since when, and how many, the oldest first.
        self._known: dict[tuple[str, ...], tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def note(self, reason: tuple[str, ...], address: str, now: float) -> tuple[str, int]:
        """Count one; return for which address, and how many these are if it is told, else 0.

        ``reason``: of the code's own words; ``now``: seconds that never fall.
        """
        while (oldest := next(iter(self._known.items()), None)) and now - oldest[1][0] >= WINDOW_S:
            self._known.pop(oldest[0], None)
        if (*reason, address) not in self._known and len(self._known) >= self._most:
            address = OTHERS
        since, times = self._known.get((*reason, address), (now, 0))
        self._known[(*reason, address)] = since, times + 1
        return address, times + 1 if str(times + 1).strip("0") == "1" else 0


class CallerAudit:
    """Tells of callers that one service does not let in, and of what its operators do.

    Any thread; logger and observers are called outside of locks, and an exception of a logger
    changes nothing. ``counts``: all refusals, by their reasons.
    """

    def __init__(
        self,
        counted: Callable[[str, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``counted``: is told kind and reason of each refusal; it must not raise."""
        self._counted = counted
        self._clock = clock
        # A signal handler may call, too.
        self._lock = threading.RLock()
        self._callers = RefusalTimes()
        self._acts = RefusalTimes()
        self.counts: Counter[tuple[str, str]] = Counter()

    def refused(self, error: BaseException, peer: Callable[[], str]) -> None:
        """Count a refusal, and tell of it seldom, if it is of a caller that is not let in.

        ``peer``: what ``address_of`` returned.
        """
        denied: Denied | None = getattr(error, "denied", None)
        if denied is None:
            return
        source = source_of(peer())
        with self._lock:
            self.counts[denied] += 1
            address, times = self._callers.note(denied, source, self._clock())
        if self._counted is not None:
            self._counted(*denied)
        if times:
            with suppress(Exception):
                _log.warning(
                    "caller_refused",
                    kind=denied.kind,
                    reason=denied.reason,
                    address=address,
                    times=times,
                )

    def acted(self, caller: str, verb: str, what: str, error: BaseException | None = None) -> None:
        """Tell that an operator acted; seldom, if it was one that may not."""
        if getattr(error, "denied", None) is not None:
            with self._lock:
                _, times = self._acts.note((verb,), caller, self._clock())
            if not times:
                return
        acted(caller, verb, what, error)

    def acting(self, caller: str, verb: str, what: str) -> AbstractContextManager[None]:
        """Tell what the block did, once it has ended."""
        return acting(verb, what, caller, self.acted)


def address_of(context: Any) -> Callable[[], str]:
    """Return what tells a call's address, also after the call.

    Of a call on ``grpc.aio`` this is asked before anything is awaited: on one that has ended,
    gRPC's question kills the process.
    """
    if type(context).__module__.startswith("grpc._cython"):
        address = context.peer()
        return lambda: address
    # Asked only where it is told.
    return lambda: context.peer()


def caller_of(context: Any) -> str:
    """Return who calls, for people: the names in its certificate, or its address."""
    return ", ".join(names_of(context.auth_context()) or ()) or source_of(context.peer())
