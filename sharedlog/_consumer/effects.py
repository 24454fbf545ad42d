"""The effects of one message: what a handler gets beside it."""

from __future__ import annotations

import os
from typing import Any

from sharedlog._core.catalog import Stream
from sharedlog._core.consumer.outputs import Outputs
from sharedlog._core.envelope import About, Value
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.message import Message
from sharedlog._log.place import forked
from sharedlog._log.placing import Headers, Placing


class Effects:
    """The transaction of a handler: its database and its outputs. Of no use once it returned.

    ``connection``: of sqlite3 or psycopg, in a transaction that the consumer commits, with other
    messages maybe. ``message``: as ``log.follow`` would give it.
    """

    def __init__(
        self, connection: Any, message: Message, placing: Placing, outputs: Outputs
    ) -> None:
        """Use ``Consumer.on``."""
        self._connection = connection
        self._process = os.getpid()
        self.message = message
        self._placing = placing
        self._outputs = outputs
        self._over = False

    @property
    def connection(self) -> Any:
        """The transaction's; raises ``LogStopped`` in a child that the handler forked."""
        if os.getpid() != self._process:
            raise forked()
        return self._connection

    def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> None:
        """Publish a message, if and once the transaction commits; arguments as ``Log.publish``.

        Its ``causation_id`` is the position of the message, where nothing else is said. Raises
        ``InvalidRequest`` where the transaction has no room for it, and for what cannot be.
        """
        if self._over:
            raise InvalidRequest("the handler returned: nothing can be published with it any more")
        about = about or About()
        if not about.causation_id:
            about = about._replace(causation_id=str(self.message.position))
        self._outputs.add(self._placing.placed(stream, value, key, headers, about))

    def end(self) -> None:
        """The handler returned."""
        self._over = True
