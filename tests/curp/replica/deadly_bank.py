"""A bank in which one payment kills the process that makes it."""

from __future__ import annotations

import os
import signal
from typing import Any

from examples.bank.v1 import bank_pb2
from examples.replicated_bank.bank import MemoryBank

__all__ = ["DeadlyBank"]


class DeadlyBank(MemoryBank):
    """Dies of references that begin with "poison"; by SIGSEGV of "poison-signal".

    Of "replay" only who follows dies; of the balance of "poison" who is asked for it.
    """

    def Deposit(self, request: Any, context: Any) -> bank_pb2.Receipt:  # noqa: N802 - the proto's
        if request.reference.startswith("poison"):
            if request.reference == "poison-signal":
                os.kill(os.getpid(), signal.SIGSEGV)
            os._exit(3)
        if request.reference == "replay" and context.peer() == "replay":
            os._exit(3)
        return super().Deposit(request, context)

    def Balance(self, request: Any, context: Any) -> bank_pb2.BalanceReply:  # noqa: N802 - the proto's
        if request.account == "poison":
            os._exit(3)
        return super().Balance(request, context)
