"""The conflict keys that a client finds by the application's own callables (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from _rifl_ground.log import get_logger
from curp._core.conflict_keys import keys_of_values

_log = get_logger("curp.client")


class CallerKeys:
    """What a call is recorded under if the group says that a callable finds its keys.

    A callable gets what the server's gets: the request message, of the class that
    this process knows for the method; the bytes if it knows none. One that raises,
    or that was not given, finds none: the call conflicts with everything there. Any
    thread that the callables are safe in.
    """

    def __init__(self, declared: Mapping[str, Callable[[Any], Any]]) -> None:
        self._declared = dict(declared)
        self._readers: dict[str, Callable[[bytes], Any]] = {}
        self._failed: set[str] = set()

    def find(self, method: str, request: bytes) -> frozenset[int]:
        """Return the keys of a request, none for a call that conflicts with everything."""
        declared = self._declared.get(method)
        if declared is None:
            return frozenset()
        read = self._readers.get(method)
        if read is None:
            read = self._readers[method] = _reader(method)
        try:
            return keys_of_values(declared(read(request)))
        except Exception:  # noqa: BLE001 - the application's; without keys the call is safe
            if method not in self._failed:
                self._failed.add(method)
                _log.exception("conflict_keys_failed", method=method)
            return frozenset()


def _reader(method: str) -> Callable[[bytes], Any]:
    pool: Any = descriptor_pool.Default()
    try:
        found = pool.FindMethodByName(method.removeprefix("/").replace("/", "."))
    except KeyError:
        return lambda request: request
    reader: Callable[[bytes], Any] = GetMessageClass(found.input_type).FromString
    return reader
