"""Batches on an event loop: the shell around ``BatchRun``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio

from rifl._client.aio_client import AioClient
from rifl._client.answers import ATTEMPT_CANCELLED, CLOSED
from rifl._client.batch import BatchItem, BatchResult, BatchRun, Send


async def run_batch(
    client: AioClient,
    channel: grpc.aio.Channel,
    method: str,
    items: Iterable[BatchItem],
    timeout: float | None,
    metadata: Any,
) -> list[BatchResult]:
    """Run a batch to its end."""
    woken = asyncio.Event()
    run = BatchRun(client, method, items, timeout, metadata, woken.set)
    inner: Any = channel.unary_unary(method)
    try:
        while (step := run.next()) is not None:
            if isinstance(step, Send):
                await _send(inner, run, step)
                continue
            limit_s = None if step.until is None else step.until - client.now()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await woken.wait()
            woken.clear()
    except BaseException:
        run.interrupted()
        raise
    return run.results()


async def _send(inner: Any, run: BatchRun, step: Send) -> None:
    try:
        with contextlib.nullcontext() if step.route is None else step.route:
            call = inner(step.body, timeout=step.timeout_s, metadata=step.metadata)
        reply = await call
    except grpc.aio.AioRpcError as error:
        run.failed(error)
    except grpc.aio.UsageError:
        run.failed(CLOSED)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        run.failed(ATTEMPT_CANCELLED)
    else:
        run.replied(reply)
