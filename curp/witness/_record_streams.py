"""Streams of records: many callers' share a message (DESIGN §7, invariant 2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from _rifl_ground.log import get_logger
from curp.witness._handlers import WitnessHandlers
from curp.witness._refusal import abort
from lease_server._errors import TooManyRefusals
from rifl._grpc.audit import address_of
from rifl._grpc.shares import Shares
from rifl._grpc.source import source_of
from rifl._leases.peer import peer_of
from rifl.core._shared.errors import NotYours, RiflError

_log = get_logger("curp.witness")

_MAX_STREAMS = 10_000
_MAX_STREAMS_PER_PEER = 1_000
# A stream is opened by who has a record to send.
_FIRST_RECORD_S = 10.0
# Messages of a stream that may come to nothing, after those before them were good.
_MAX_REFUSALS = 64

_Context = grpc.aio.ServicerContext[bytes, bytes]


class RecordStreams:
    """The open ``Records`` of one witness, on its event loop.

    A message is answered before the next one is read, so that what a caller sends ahead
    waits in gRPC's flow control, and not here. A stream is kept for who is authorised: the first
    message has to come within 10 s, with a record that has a verdict. At most 10,000 are open,
    1,000 of one authenticated peer, or of one address if there is none: others are
    refused, and record by unary calls.
    """

    def __init__(
        self, witness: WitnessHandlers, peer_property: str | None, stopping: asyncio.Event
    ) -> None:
        """``stopping``: set, it ends them all, which a server's stop would wait for."""
        self._witness = witness
        self._peer_property = peer_property
        self._stopping = stopping
        self._open = Shares(_MAX_STREAMS, _MAX_STREAMS_PER_PEER)
        self._reading: set[asyncio.Task[Any]] = set()
        self._ender: asyncio.Task[None] | None = None

    async def serve(self, requests: Any, context: _Context) -> None:
        """Answer one stream until its caller ends it."""
        del requests
        whose: bytes | str | None = None
        whence = address_of(context)
        try:
            caller = _Caller(context, self._peer_property)
            whose = self._enter(caller.known or source_of(whence()))
            await self._answer(context, caller.peer, whence)
        except RiflError as error:
            # Of a caller that is not let in the audit tells.
            if error.denied is None:
                _log.warning("record_stream_refused", peer=whence(), reason=error.reason)
            await abort(context, error)
        finally:
            if whose is not None:
                self._leave(whose)

    async def _answer(
        self, context: _Context, peer: Callable[[], bytes], whence: Callable[[], str]
    ) -> None:
        witness = self._witness
        expected = 1
        refusals = 0
        # Not by the requests' iterator, which takes processor time for each message.
        raw: Any = await self._read(context, _FIRST_RECORD_S)
        while raw is not grpc.aio.EOF and raw is not None:
            answered = witness.records(raw, peer, expected)
            for each in answered.strangers:
                witness.audit.refused(each, whence)
            if answered.refusal is not None:
                refusals += 1
                if expected == 1 or refusals > _MAX_REFUSALS:
                    # Nothing good is known of the caller.
                    raise answered.refusal
            expected = answered.following
            await context.write(answered.reply)
            raw = await self._read(context, None)

    async def _read(self, context: _Context, timeout_s: float | None) -> Any:
        """Return the next message, None at the witness's own end."""
        task = asyncio.current_task()
        if self._stopping.is_set() or task is None:
            return None
        self._reading.add(task)
        try:
            if timeout_s is None:
                return await context.read()
            async with asyncio.timeout(timeout_s):
                return await context.read()
        except TimeoutError:
            raise TooManyRefusals("no record came on this stream; use Record") from None
        except asyncio.CancelledError:
            if self._stopping.is_set():
                return None
            raise
        finally:
            self._reading.discard(task)

    async def _end_all(self) -> None:
        await self._stopping.wait()
        for task in self._reading:
            task.cancel()

    def _enter(self, whose: bytes | str) -> bytes | str:
        if not self._open.enter(whose):
            raise TooManyRefusals("too many streams of records; use Record")
        if self._ender is None:
            self._ender = asyncio.get_running_loop().create_task(self._end_all())
        return whose

    def _leave(self, whose: bytes | str) -> None:
        self._open.leave(whose)
        if not len(self._open) and self._ender is not None:
            self._ender.cancel()
            self._ender = None


class _Caller:
    """Who is at the other end of a stream: as of a unary call, and found once."""

    def __init__(self, context: _Context, peer_property: str | None) -> None:
        self.known = b""
        self._refusal: NotYours | None = None
        try:
            self.known = peer_of(context, peer_property)
        except NotYours as refusal:
            self._refusal = refusal

    def peer(self) -> bytes:
        """Return the authenticated peer; raises ``NotYours`` as ``peer_of`` does."""
        if self._refusal is not None:
            raise self._refusal
        return self.known
