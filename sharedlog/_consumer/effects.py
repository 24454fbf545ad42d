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
    """The transaction of a handler: its database and its outputs. Of no use once it returned.

    ``connection``: of sqlite3 or psycopg, in a transaction that the consumer commits, with other
    messages maybe; over Redis a pipeline of redis-py. ``state``: in place of it, where the log has
    it. ``message``: as ``log.follow`` would give it, ``messages``: all of a batch.
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
        """The message; ``InvalidRequest`` for a timer's function, and for one of batches."""
        if self._message is None:
            raise InvalidRequest("a timer has no message, and a batch has effects.messages")
        return self._message

    @property
    def connection(self) -> Any:
        """The transaction's; raises ``LogStopped`` in a child that the handler forked.

        ``InvalidRequest`` where the log has the state. Once the handler has ended, this and what
        was made of it raise ``HandlerEnded``.
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

        ``Session(effects.sqlalchemy)`` flushes where it is told to commit; rolling back is
        ``InvalidRequest``, but for ``begin_nested``.
        """
        self.connection  # noqa: B018 - it may be used, and is from here on
        return self._calls.store.sqlalchemy()

    def channel(self, target: str) -> Any:
        """Return a channel for stubs, whose calls happen once, however often the handler runs.

        Of ``grpc``, and in an async handler of ``grpc.aio``; the server's methods are deduplicated
        by rifl. A handler that runs again gets the first answers. Unary calls. A call that is not
        answered undoes the transaction, whatever the handler makes of it; an error that the
        service has answered is an answer. Over SQLite a call comes before the first write of the
        handler: ``CallAfterWrite``. Raises ``CallMismatch`` where the handler has made another
        call when it ran before, ``InvalidRequest``, and what stubs raise.
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
        """The state of the message's substream, of a consumer whose store is the log.

        Keys are texts, values bytes or what JSON has. What it returns is a copy: to change a
        value, assign it. Raises ``InvalidRequest`` where the effects are in a database.
        """
        if self._state is None:
            raise InvalidRequest("this consumer's effects are in a database: effects.connection")
        return self._state

    def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> None:
        """Publish a message, if and once the transaction commits; arguments as ``Log.publish``.

        A savepoint of the database's that is rolled back does not take it back: ``savepoint``
        does.

        Its ``causation_id`` is the position of the message, where nothing else is said, and of a
        batch the last one's. Raises
        ``InvalidRequest`` where the transaction has no room for it, and for what cannot be.
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
        """Have a block be undone as a whole, if an exception leaves it: ``with``, ``async with``.

        ::

            with effects.savepoint():
                effects.connection.execute(...)
                effects.publish(...)

        It takes back what the block has done to the database (over Redis: what it has queued; with
        state in the log: its changes) and what it has published. The exception goes on. They nest.
        Other tasks and threads of the handler do not enter one meanwhile: ``InvalidRequest``.
        """
        self._loan.check()
        if this_process() is not self._process:
            raise forked()
        return Savepoint(self._open, lambda: (self._calls.store.savepoint(), self._savepoint()))

    def check(self) -> None:
        """Raise ``Failed`` where the handler has left a savepoint open."""
        if self._open:
            raise Failed("the handler has left an effects.savepoint() open", counts=True)

    async def leave(self) -> None:
        """The handler, which is async, has ended: what it has not awaited is cancelled."""
        await self._calls.leave()

    def end(self) -> None:
        """The handler has returned, or raised: nothing of this is of use any more. Idempotent."""
        if self._loan.over or this_process() is not self._process:
            return
        self._loan.over = True
        if self._state is not None:
            self._state.end()
        self._calls.end()

    def take_back(self) -> None:
        """Wait until nothing is in flight of what was lent, for a while; idempotent."""
        self.end()
        if this_process() is self._process:
            self._calls.store.take_back()
