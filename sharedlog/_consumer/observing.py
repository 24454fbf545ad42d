"""The observers of a consumer, kept from doing harm."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from _rifl_ground.log import get_logger
from sharedlog._core.arguments import shown
from sharedlog._core.consumer.observer import ConsumerObserver, HandlingReport
from sharedlog._core.errors import InvalidRequest

_log = get_logger("sharedlog")


class Watchers:
    """Those of one consumer. Any thread: they are told one after the other."""

    def __init__(self, observers: Sequence[ConsumerObserver]) -> None:
        """``observers``: of the user."""
        self._observers = tuple(observers)
        self._failed: set[str] = set()
        self._telling = threading.RLock()

    def __bool__(self) -> bool:
        """Whether there is an observer."""
        return bool(self._observers)

    @classmethod
    def of(cls, given: ConsumerObserver | Sequence[ConsumerObserver] | None) -> Watchers:
        """Return what stands for the argument of a user; raises ``InvalidRequest``."""
        several = given if isinstance(given, Sequence) else () if given is None else (given,)
        if not all(isinstance(each, ConsumerObserver) for each in several):
            raise InvalidRequest(
                f"observer={shown(given)} must be a sharedlog.ConsumerObserver, or a list of them"
            )
        return cls(several)

    def each(self, method: str, *given: Any) -> None:
        """Tell each of them."""
        with self._telling:
            for observer in self._observers:
                try:
                    getattr(observer, method)(*given)
                except Exception as error:  # noqa: BLE001 - a watcher must not break what it watches
                    self._note(method, error)

    @contextmanager
    def handling(self, report: HandlingReport | None) -> Iterator[tuple[str, str]]:
        """Have a handler run under their eyes; yields the trace context of what it publishes."""
        if report is None:
            yield "", ""
            return
        with self._telling:
            begun, trace = self._begin(report)
        began, error = time.perf_counter(), ""
        try:
            yield trace
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            seconds = time.perf_counter() - began
            with self._telling:
                for observer, mine in reversed(list(zip(self._observers, begun, strict=True))):
                    try:
                        observer.handled(report, mine, seconds, error)
                    except Exception as raised:  # noqa: BLE001 - as above
                        self._note("handled", raised)

    def _begin(self, report: HandlingReport) -> tuple[list[Any], tuple[str, str]]:
        begun: list[Any] = []
        trace = ("", "")
        for observer in self._observers:
            mine = None
            try:
                found = observer.handling(report)
                if found is not None:
                    mine = found[2]
                    trace = found[:2] if found[0] else trace
            except Exception as error:  # noqa: BLE001 - as above
                self._note("handling", error)
            begun.append(mine)
        return begun, trace

    def _note(self, method: str, error: Exception) -> None:
        if method not in self._failed:
            self._failed.add(method)
            _log.error("observer_failed", method=method, error=repr(error))
