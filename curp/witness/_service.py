"""The witness service on an aio gRPC server (DESIGN §7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import grpc
import grpc.aio

from _rifl_ground.log import get_logger
from curp._group_token import denied_change, tokens_of
from curp.witness._handlers import WitnessHandlers
from curp.witness._record_streams import RecordStreams
from curp.witness._refusal import abort
from rifl._grpc.shares import Shares
from rifl._grpc.source import source_of
from rifl._leases.peer import peer_of
from rifl.core._shared.errors import NotYours, RiflError, StoreUnavailable

_log = get_logger("curp.witness")

SERVICE_NAME = "curp.v1.Witness"

# Open streams that only keep their callers' channels awake, in all and of one address.
_MAX_WATCHERS, _MAX_WATCHERS_OF_ONE = 10_000, 1_000

_Context = grpc.aio.ServicerContext[bytes, bytes]


def add_witness_service(
    server: grpc.aio.Server,
    witness: WitnessHandlers,
    *,
    group_token: str | Sequence[str] | None = None,
    open_group: bool = False,
    peer_property: str | None = None,
    on_failure: Callable[[], None] | None = None,
    stopping: asyncio.Event | None = None,
) -> None:
    """Serve ``curp.v1.Witness`` from ``witness``; to be called before the server starts.

    Everything runs on the event loop: a record costs no hand-over, and no other step
    comes between its decision and its storing.

    ``group_token``: Collect, Freeze, Start and Status are refused (NOT_YOURS) without it, or
    one of them, since a client that can freeze a witness can stop the group, and read its
    calls; None: they are open to callers of this machine, and with ``open_group`` to all.
    ``peer_property``: as of the replicas (see ``rifl._leases.peer``).
    ``on_failure``: called when the journal could not be written: end the process.
    ``stopping``: set, it ends the streams that are open, which a stop would wait for.
    """
    stopping = stopping or asyncio.Event()
    shell = _Shell(witness, group_token, open_group, peer_property, on_failure, stopping)
    streams = RecordStreams(witness, peer_property, stopping)
    handlers = {
        "Record": grpc.unary_unary_rpc_method_handler(shell.record),
        "Records": grpc.stream_stream_rpc_method_handler(streams.serve),
        "Collect": shell.unary(witness.collect),
        "Freeze": grpc.unary_stream_rpc_method_handler(shell.freeze),
        "Start": shell.unary(witness.start),
        "Status": shell.unary(lambda _: witness.status()),
        "Watch": grpc.unary_stream_rpc_method_handler(shell.watch),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))


class _Shell:
    def __init__(
        self,
        witness: WitnessHandlers,
        group_token: str | Sequence[str] | None,
        open_group: bool,
        peer_property: str | None,
        on_failure: Callable[[], None] | None,
        stopping: asyncio.Event,
    ) -> None:
        self._witness = witness
        self._tokens = tokens_of(group_token)
        self._open_group = open_group
        self._peer_property = peer_property
        self._on_failure = on_failure
        self._stopping = stopping
        self._watchers = Shares(_MAX_WATCHERS, _MAX_WATCHERS_OF_ONE)

    async def record(self, raw: bytes, context: _Context) -> bytes:
        try:
            return self._witness.record(raw, lambda: peer_of(context, self._peer_property))
        except RiflError as error:
            await self._refuse(context, error)

    async def watch(self, raw: bytes, context: _Context) -> AsyncIterator[bytes]:
        del raw
        await context.send_initial_metadata(())
        # Beyond that a caller's records cost it a little more, and nothing else.
        source = source_of(context.peer())
        if self._watchers.enter(source):
            try:
                await self._stopping.wait()
            finally:
                self._watchers.leave(source)
        return
        yield b""

    async def freeze(self, raw: bytes, context: _Context) -> AsyncIterator[bytes]:
        try:
            self._authorise(context)
            chunks = self._witness.freeze(raw)
        except RiflError as error:
            await self._refuse(context, error)
        except OSError as error:
            await self._fail(context, error)
        for chunk in chunks:
            yield chunk

    def unary(self, answer: Callable[[bytes], bytes]) -> Any:
        async def behave(raw: bytes, context: _Context) -> bytes:
            try:
                self._authorise(context)
                return answer(raw)
            except RiflError as error:
                await self._refuse(context, error)
            except OSError as error:
                await self._fail(context, error)

        return grpc.unary_unary_rpc_method_handler(behave)

    def _authorise(self, context: _Context) -> None:
        denied = denied_change(context, self._tokens, open_group=self._open_group)
        if denied is not None:
            raise NotYours("only the group's replicas may ask this, with the group's token", denied)

    async def _refuse(self, context: _Context, error: RiflError) -> NoReturn:
        self._witness.audit.refused(error, context.peer)
        await abort(context, error)

    async def _fail(self, context: _Context, error: OSError) -> NoReturn:
        # A failed write is never tried again: what is on the disk is not known.
        _log.error("journal_failed", error=str(error))
        if self._on_failure is not None:
            self._on_failure()
        await abort(context, StoreUnavailable(f"the journal cannot be written: {error}"))
