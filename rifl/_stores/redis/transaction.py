"""The completion record inside a handler's own Redis transaction (DESIGN §6)."""

from __future__ import annotations

import inspect
import math
import weakref
from typing import Any

import redis

from _rifl_ground.counting import noted
from _rifl_ground.redis.rights import RIGHTS, probe, refused
from rifl._stores.errors import WrongDatabase
from rifl._stores.redis.backend import RedisBackend
from rifl._stores.redis.script_calls import finish_arguments, member_of, move_arguments
from rifl._stores.redis.scripts import FINISH, ROWS
from rifl._stores.shared.requests import Finish, MoveInside
from rifl.core._shared.errors import StaleRpc

# MULTI does not roll back, so all conditions are put into one key, which exists with
# the attempt's token exactly as long as it may record: it is WATCHed and read here,
# and anything that ends the attempt (a record, an acknowledgement, a take-over, the
# end of the lease) deletes it, so that EXEC then does nothing at all.

# What is written in a handler's transaction: a record, or a row's move, which is WATCHed itself.
Written = Finish | MoveInside

# Pools whose user may do what the record needs.
_TRIED: weakref.WeakSet[Any] = weakref.WeakSet()


def write_record(pipeline: Any, backend: RedisBackend, finish: Written) -> None:
    """WATCH the attempt, check it, and queue its record first in the transaction.

    Raises ``WrongDatabase`` or ``StaleRpc``; the pipeline is left in MULTI.
    """
    key = _key(backend, finish)
    _check(pipeline)
    if inspect.iscoroutinefunction(pipeline.watch):
        raise WrongDatabase("an asyncio pipeline needs `await rifl.aio.record(...)`")
    _keep_session(pipeline)
    pipeline.watch(key)
    if isinstance(finish, MoveInside):
        _note_errors(pipeline)
        _check_row(pipeline.execute_command("EVAL", *_look(backend, finish)), finish)
    else:
        _check_token(pipeline.get(key), finish)
    if _is_new(pipeline):
        _check_rights(pipeline, pipeline.execute_command("EVAL", *_probe(backend, finish)))
    pipeline.multi()
    _keep_session(pipeline)
    pipeline.execute_command("EVAL", *_statement(backend, finish))


async def write_record_async(pipeline: Any, backend: RedisBackend, finish: Written) -> None:
    """The same for a pipeline of ``redis.asyncio``."""
    key = _key(backend, finish)
    _check(pipeline)
    _keep_session(pipeline)
    await pipeline.watch(key)
    if isinstance(finish, MoveInside):
        _note_errors(pipeline)
        _check_row(await pipeline.execute_command("EVAL", *_look(backend, finish)), finish)
    else:
        _check_token(await pipeline.get(key), finish)
    if _is_new(pipeline):
        _check_rights(pipeline, await pipeline.execute_command("EVAL", *_probe(backend, finish)))
    pipeline.multi()
    _keep_session(pipeline)
    pipeline.execute_command("EVAL", *_statement(backend, finish))


def _note_errors(pipeline: Any) -> None:
    """Have what a pipeline's EXEC raises be marked as the transaction's (``counting``)."""
    execute = pipeline.execute

    def executing(*given: Any, **named: Any) -> Any:
        try:
            return execute(*given, **named)
        except redis.RedisError as error:
            noted(error)
            raise

    async def executing_async(*given: Any, **named: Any) -> Any:
        try:
            return await execute(*given, **named)
        except redis.RedisError as error:
            noted(error)
            raise

    # A pipeline is of one client: what was noted once stays so.
    if "execute" not in pipeline.__dict__:
        is_async = inspect.iscoroutinefunction(execute)
        pipeline.execute = executing_async if is_async else executing


def _key(backend: RedisBackend, finish: Written) -> bytes:
    if isinstance(finish, MoveInside):
        return backend.key(f"row:{finish.move.key}").encode()
    return f"{backend.base(finish.call.client_id)}try:".encode() + member_of(finish.call)


def _check(pipeline: Any) -> None:
    if not (hasattr(pipeline, "watch") and hasattr(pipeline, "multi")):
        raise WrongDatabase(f"a redis-py pipeline is wanted, not a {type(pipeline)!r}")
    strategy = getattr(pipeline, "_execution_strategy", pipeline)
    transactional = getattr(pipeline, "transaction", getattr(pipeline, "is_transaction", True))
    if transactional is False or type(strategy).__name__ == "PipelineStrategy":
        raise WrongDatabase("the pipeline is no transaction: make it with transaction=True")
    explicit = getattr(pipeline, "explicit_transaction", False)
    explicit = explicit or getattr(strategy, "_explicit_transaction", False)
    if explicit or len(pipeline):
        raise WrongDatabase(
            "the pipeline must still be empty: WATCH and read first, then rifl.record, then queue "
            "the effects"
        )


def _keep_session(pipeline: Any) -> None:
    """Have what is sent next be sent in the session that WATCHes, if there is one, or fail.

    A client with ``health_check_interval`` asks first whether the session is there, and goes on
    with a new one, which WATCHes nothing. The next answer has it ask again.
    """
    strategy = getattr(pipeline, "_execution_strategy", pipeline)
    connection = getattr(pipeline, "connection", None)
    connection = connection or getattr(strategy, "_transaction_connection", None)
    if connection is not None:
        connection.next_health_check = math.inf


def _check_token(found: Any, finish: Finish) -> None:
    token = found.encode("latin-1") if isinstance(found, str) else found
    if token != finish.token:
        raise StaleRpc(
            f"{finish.call.rpc_id} is recorded, acknowledged or taken over, or the pipeline is to "
            "another Redis than the store"
        )


def _look(backend: RedisBackend, finish: MoveInside) -> list[Any]:
    arguments = move_arguments([finish.move], b"look")
    return [ROWS.text, *backend.invocation(ROWS, None, arguments)]


def _check_row(found: Any, finish: MoveInside) -> None:
    if found[0] not in (b"same", "same"):
        raise StaleRpc(
            f"{finish.move.key} moved meanwhile, or the pipeline is to another Redis than the store"
        )


def _is_new(pipeline: Any) -> bool:
    return getattr(pipeline, "connection_pool", None) not in _TRIED


def _probe(backend: RedisBackend, finish: Written) -> list[Any]:
    script = ROWS if isinstance(finish, MoveInside) else FINISH
    inside = isinstance(finish, MoveInside)
    key = backend.key("probe") if inside else f"{backend.base(finish.call.client_id)}probe"
    return [RIGHTS.text, 1, key, *probe([script], backend.key("wake:probe"))]


def _check_rights(pipeline: Any, failed: Any) -> None:
    """The handler's connection may be another user's, and EXEC does not undo effects."""
    missing = refused(failed)
    if missing:
        raise WrongDatabase(
            f"the pipeline's user may not {', '.join(missing)} on the store's keys: the record "
            "could not be written, and the effects would stand"
        )
    if (pool := getattr(pipeline, "connection_pool", None)) is not None:
        _TRIED.add(pool)


def _statement(backend: RedisBackend, finish: Written) -> list[Any]:
    # The text, since EVALSHA could be unknown to the server, and there is no roll-back.
    if isinstance(finish, MoveInside):
        moves = move_arguments([finish.move])
        return [ROWS.text, *backend.invocation(ROWS, None, moves, late=True)]
    arguments = finish_arguments(finish)
    return [
        FINISH.text,
        *backend.invocation(FINISH, finish.call.client_id, arguments, late=True),
    ]
