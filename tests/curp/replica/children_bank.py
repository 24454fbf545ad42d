"""The bank whose deposits each fork a child, which is asked to end."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from examples.bank.v1 import bank_pb2
from tests.curp.replica.ledger import Bank

__all__ = ["ChildrenBank"]

_LIVES_S = 5.0


class ChildrenBank(Bank):
    """Answers with what ended the child: minus the signal, or 0 when it did not listen."""

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        """Fork, and end it."""
        child = os.fork()
        if child == 0:
            threading.Event().wait(_LIVES_S)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return bank_pb2.Receipt(entry=1, balance_cents=ended)
