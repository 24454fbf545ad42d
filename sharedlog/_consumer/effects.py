"""The effects of one message: what a handler gets beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from _rifl_ground.counting import noted
from _rifl_ground.forks import this_process
from _rifl_ground.loans import Loan
from sharedlog._consumer.calling import MessageCalls
from sharedlog._consumer.channels import channel_for
from sharedlog._consumer.lending import handler_ended
from sharedlog._consumer.savepoints import Savepoint
from sharedlog._consumer.state import ShardState
from sharedlog._core.catalog import Stream
from sharedlog._core.consumer.asked import Failed
from sharedlog._core.consumer.outputs import Outputs
from sharedlog._core.envelope import About, Value
from sharedlog._core.errors import InvalidRequest, LogUnavailable
from sharedlog._core.message import Message
from sharedlog._log.place import forked
from sharedlog._log.placing import Headers, Placing


class Effects:
    """The transaction of a handler: its database and its outputs, until the handler returns.

    ``connection``: of sqlite3 or psycopg, in a transaction that the consumer commits, maybe with
    other messages; over Redis a pipeline of redis-py. ``state``: replaces it for a consumer whose
    store is the log. ``message``: as from ``log.follow``. ``messages``: all of a batch.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        placing: Placing,
        outputs: Outputs,
        calls: MessageCalls,
        state: ShardState | None = None,
        *,
        batch: bool = False,
    ) -> None:
        """Use ``Consumer.on``, and ``Consumer.every``, whose functions have no message."""
        # What the function is called with; a timer's with none.
        self.messages = messages
        self._state = state
        self._loan = Loan(handler_ended)
        self._connection = calls.store.lend(self._loan)
        self._process = this_process()
        self._message = messages[0] if messages and not batch else None
        self._placing = placing
        self._outputs = outputs
        self._calls = calls
        # The savepoints that it is in, the newest last.
        self._open: list[Savepoint] = []
        # Tasks that were begun while it ran, and run on.
        self.left: Sequence[str] = ()
        # What is published carries this trace context, where nothing else is said.
        self.trace = ("", "")

    @property
    def message(self) -> Message:
        """The message; raises ``InvalidRequest`` in a timer, and in a handler of batches."""
        if self._message is None:
            raise InvalidRequest("a timer has no message; in a batch use effects.messages")
        return self._message

    @property
    def connection(self) -> Any:
        """The connection of the transaction.

        Raises ``InvalidRequest`` if the consumer's store is the log, and ``LogStopped`` in a forked
        child. After the handler's end this, and objects made from it, raise ``HandlerEnded``.
        """
        if this_process() is not self._process:
            raise forked()
        self._loan.check()
        self._calls.check_connection()
        self._calls.read = True
        if self._connection is None:
            raise InvalidRequest("this consumer's state is in the log: effects.state")
        return self._connection

    @property
    def sqlalchemy(self) -> Any:
        """A ``sqlalchemy.Connection`` in the same transaction, for SQLite and PostgreSQL.

        A ``Session(effects.sqlalchemy)`` only flushes on ``commit``. A rollback raises
        ``InvalidRequest``, except within ``begin_nested``.
        """
        self.connection  # noqa: B018 - it may be used, and is from here on
        return self._calls.store.sqlalchemy()

    def channel(self, target: str) -> Any:
        """Return a channel for stubs, whose calls happen once, however often the handler runs.

        A channel of ``grpc``, or in an async handler of ``grpc.aio``; rifl must deduplicate the
        methods. Unary calls only. A handler that runs again gets the first answers. A call without
        an answer rolls the transaction back, also if the handler catches the error; an error that
        the service returns is an answer. Over SQLite, call before the first write, else
        ``CallAfterWrite``. Raises ``CallMismatch`` if the handler made another call in an earlier
        run, ``InvalidRequest``, and what stubs raise.
        """
        self._loan.check()
        if this_process() is not self._process:
            raise forked()
        if self._message is None:
            raise InvalidRequest(
                "a timer makes no calls, nor does a function of batches: calls are once for each "
                "message"
            )
        return channel_for(self._calls, target)

    @property
    def state(self) -> MutableMapping[str, Any]:
        """The state of the message's substream, for a consumer whose store is the log.

        Keys are texts, values are bytes or JSON values. Reading returns a copy: to change a value,
        assign it. Raises ``InvalidRequest`` if the effects are in a database.
        """
        if self._state is None:
            raise InvalidRequest(
                "this consumer's effects are in a database: use effects.connection"
            )
        return self._state

    def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> None:
        """Publish a message once, if the transaction commits; arguments as ``Log.publish``.

        Rolling back to a savepoint of the database does not take it back; leaving
        ``effects.savepoint`` by an exception does.

        The default ``causation_id`` is the position of the handled message, of a batch that of the
        last one. Raises ``InvalidRequest`` if the transaction has no room for it, and for invalid
        arguments.
        """
        self._loan.check()
        cause = str(self.messages[-1].position) if self.messages else ""
        if about is None:
            about = About(headers, "", "", *self.trace, cause)
        else:
            if not about.causation_id:
                about = about._replace(causation_id=cause)
            if self.trace[0] and not about.trace_parent:
                about = about._replace(trace_parent=self.trace[0], trace_state=self.trace[1])
            if headers is not None:
                about = about._replace(headers=headers)
        try:
            self._outputs.add(self._placing.placed(stream, value, key, None, about))
        except LogUnavailable as error:
            noted(error)
            raise

    @contextlib.contextmanager
    def _savepoint(self) -> Iterator[None]:
        """Undo in memory what was done in a block that an exception leaves."""
        published = len(self._outputs.messages)
        state = None if self._state is None else self._state.kept()
        try:
            yield
        except BaseException:
            if not self._loan.over:
                self._outputs.back_to(published)
                if self._state is not None and state is not None:
                    self._state.back_to(state)
            raise

    def savepoint(self) -> Savepoint:
        """Roll a block back as a whole if an exception leaves it: ``with``, ``async with``.

        ::

            with effects.savepoint():
                effects.connection.execute(...)
                effects.publish(...)

        It takes back the block's changes of the database (over Redis: queued commands; with state
        in the log: changes of it) and its published messages. The exception goes on. They nest.
        If another task or thread of the handler enters one meanwhile: ``InvalidRequest``.
        """
        self._loan.check()
        if this_process() is not self._process:
            raise forked()
        return Savepoint(self._open, lambda: (self._calls.store.savepoint(), self._savepoint()))

    def check(self) -> None:
        """Raise ``Failed`` if the handler has left a savepoint open."""
        if self._open:
            raise Failed("the handler has left an effects.savepoint() open", counts=True)

    async def leave(self) -> None:
        """End an async handler: calls that it has not awaited are cancelled."""
        await self._calls.leave()

    def end(self) -> None:
        """End the handler: from now on uses of this raise ``HandlerEnded``. Idempotent."""
        if self._loan.over or this_process() is not self._process:
            return
        self._loan.over = True
        if self._state is not None:
            self._state.end()
        self._calls.end()

    def take_back(self) -> None:
        """Wait for a while until no use of the lent objects is in flight; idempotent."""
        self.end()
        if this_process() is self._process:
            self._calls.store.take_back()
