"""Instrumentation: libraries that make their own channel get ours."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Self

import grpc
import grpc.aio

from _rifl_ground.owned_lock import OwnedLock
from _rifl_ground.system import at_forks
from rifl._client.aio_channel import connect as connect_aio
from rifl._client.errors import reentrant
from rifl._client.grpc_channels import opening
from rifl._client.sync_channel import connect

_NAMES = ("insecure_channel", "secure_channel")
# Guards what is patched, which the whole process shares.
_lock = OwnedLock(reentrant)


def _forget() -> None:
    global _lock
    # A thread of the parent may have it.
    _lock = OwnedLock(reentrant)


at_forks(after_in_child=_forget)


def instrument(
    targets: str | Iterable[str] | Mapping[str, Mapping[str, Any]], **settings: Any
) -> Instrumentation:
    """Make ``grpc.insecure_channel`` and its kin open rifl's channels to these targets.

    For libraries that make their own channel: sync and aio, plaintext and TLS. ``targets``
    are as the library passes them (``"payments:50051"``), or patterns as of ``fnmatch``
    (``"*.internal:443"``); the first that fits counts. ``settings`` are ``rifl.connect``'s
    (``hedge_after``, ``observer``, ``session``...), for all; the values of a mapping are
    for one target, and count before those. Credentials, options, compression and
    interceptors of the library are kept. All other targets get gRPC's own channels.

    It holds from now on, for the whole process, until ``undo`` or the end of a ``with``
    block; open channels do not change. A library that took the functions earlier
    (``from grpc import insecure_channel`` at its import) is not reached: instrument
    first, then import it. Several at once nest: the newest is asked first. Any thread.
    A forked child that makes its channels after the fork inherits the instrumentation.
    Raises ``TypeError`` for a setting that ``rifl.connect`` does not have, and
    ``rifl.core.ReentrantCall`` within itself, in a finalizer.
    """
    return Instrumentation(targets, settings)


class Instrumentation:
    """The patches of one ``instrument``. A context manager; ``undo`` is idempotent."""

    def __init__(
        self,
        targets: str | Iterable[str] | Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, Any],
    ) -> None:
        if isinstance(targets, str):
            targets = (targets,)
        if isinstance(targets, Mapping):
            self._settings = {name: {**settings, **more} for name, more in targets.items()}
        else:
            self._settings = {name: dict(settings) for name in targets}
        _check(self._settings.values())
        self._undone = False
        with _lock:
            self._before = {
                (module, name): getattr(module, name)
                for module in (grpc, grpc.aio)
                for name in _NAMES
            }
            for (module, name), before in self._before.items():
                setattr(module, name, self._opening(module is grpc.aio, name, before))

    def undo(self) -> None:
        """Open gRPC's own channels again.

        Functions that other code patched later stay patched, and call gRPC's.
        """
        with _lock:
            if self._undone:
                return
            self._undone = True
            for module, name in self._before:
                # This patch, and patches of rifl's below it that were undone earlier.
                while _undone(present := getattr(module, name)):
                    setattr(module, name, present.__self__._before[module, name])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def _opening(self, aio: bool, name: str, before: Any) -> Any:
        if name == "insecure_channel":

            def insecure_channel(
                target: str, options: Any = None, compression: Any = None, *more: Any, **named: Any
            ) -> Any:
                settings = self._found(target)
                if settings is None:
                    return before(target, options, compression, *more, **named)
                return _open(aio, target, None, options, compression, settings, *more, **named)

            made: Any = insecure_channel
        else:

            def secure_channel(
                target: str,
                credentials: Any,
                options: Any = None,
                compression: Any = None,
                *more: Any,
                **named: Any,
            ) -> Any:
                settings = self._found(target)
                if settings is None:
                    return before(target, credentials, options, compression, *more, **named)
                return _open(
                    aio, target, credentials, options, compression, settings, *more, **named
                )

            made = secure_channel
        made.__self__ = self
        return made

    def _found(self, target: Any) -> Mapping[str, Any] | None:
        if self._undone or opening():
            return None
        text = target.decode() if isinstance(target, bytes) else str(target)
        for name, settings in self._settings.items():
            if name == text or fnmatchcase(text, name):
                return settings
        return None


def _open(
    aio: bool,
    target: Any,
    credentials: Any,
    options: Any,
    compression: Any,
    settings: Mapping[str, Any],
    interceptors: Any = None,
) -> Any:
    given = {
        "options": (*(options or ()), *settings.get("options", ())),
        "compression": compression,
        "interceptors": (*(interceptors or ()), *settings.get("interceptors", ())),
    }
    text = target.decode() if isinstance(target, bytes) else target
    return (connect_aio if aio else connect)(text, credentials, **{**settings, **given})


def _undone(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    return isinstance(owner, Instrumentation) and owner._undone


def _check(each: Iterable[Mapping[str, Any]]) -> None:
    known = inspect.signature(connect).parameters
    for settings in each:
        unknown = sorted(
            settings.keys() - known.keys() | settings.keys() & {"target", "credentials"}
        )
        if unknown:
            raise TypeError(f"rifl.connect takes no {', '.join(unknown)} here")
