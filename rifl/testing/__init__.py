"""A kit to test your own services under retries, faults and restarts.

It runs your servicers in the test's process, behind a ``rifl.Deduplicator`` and
on a real port, with a connected channel, a clock you move and faults you name::

    def test_a_deposit_is_made_once(tmp_path):
        add = lambda server: add_BankServicer_to_server(bank, server)
        with rifl.testing.serve(add, url=f"sqlite:///{tmp_path}/records.db") as service:
            service.faults.arm(Fault.DROP_ANSWER)
            BankStub(service.channel).Deposit(request)
        assert bank.deposits == 1

``aio_serve`` is the same for ``grpc.aio``. Nothing in it is meant for production.

``_services`` are these servers, ``_faults`` and ``_clock`` what they meet.
"""

from rifl.testing._clock import FakeClock
from rifl.testing._faults import Fault, Faults, Killed
from rifl.testing._services import AioService, Service, aio_serve, serve

__all__ = [
    "AioService",
    "FakeClock",
    "Fault",
    "Faults",
    "Killed",
    "Service",
    "aio_serve",
    "serve",
]
