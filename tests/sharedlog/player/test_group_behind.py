"""A group behind a target: each delivery's call of the group once, in order (DESIGN-LOG §15)."""

import json
import threading
from contextlib import ExitStack

import grpc
import pytest

import rifl
import sharedlog
from curp.log import create_log
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from tests.helpers.ports import free_port
from tests.helpers.processes import Process
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import until
from tests.sharedlog.player.conftest import declared

METHOD = "/shop.v1.Payments/Pay"
SHOWN = "a secret of the player's"


class Group:
    """Replicas over one log, in processes of their own."""

    def __init__(self, directory, stack):
        self._directory, self._stack = directory, stack
        self._url = f"sqlite:///{directory / 'bank.log'}?group=bank"
        create_log(self._url)
        self.replicas = {}
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        for number, address in enumerate(self.addresses):
            name = f"r{number}"
            given = {"url": self._url, "name": name, "address": address}
            self.replicas[name] = process = Process(
                "tests.curp.replica.server", json.dumps(given), log=directory / f"{name}.err"
            )
            stack.callback(process.close)
            assert process.line() == "ready"
            if not number:
                self.until_leads(name)

    def until_leads(self, name):
        process = self.replicas[name]
        until(lambda: process.line() == "leader", f"{name} leads", 60)


@pytest.mark.slow
def test_a_group_behind_a_target_is_called_once_in_order(house, log, tmp_path):
    """Its leader is killed, and handlers fail behind its answer: effects are there once (P1)."""
    receipts, tries, lock = {}, {}, threading.Lock()
    with ExitStack() as stack:
        group = Group(tmp_path, stack)
        channel = stack.enter_context(
            rifl.connect(group.addresses, follow_leaders=True, session="payments", secret=SHOWN)
        )
        bank = bank_pb2_grpc.BankStub(channel)

        def pay(request, context):
            at = sharedlog.delivery(context).position
            wanted = bank_pb2.DepositRequest(
                reference=request.decode(), account=f"{at.substream}", cents=1
            )
            receipt = bank.Deposit(wanted, timeout=60, metadata=[rifl.key(str(at))])
            with lock:
                receipts.setdefault(at, set()).add(receipt.entry)
                tries[at] = 1 + tries.get(at, 0)
                last = tries[at] > 1 or int(request) % 5
            if not last:
                context.abort(grpc.StatusCode.UNAVAILABLE, "behind the group's answer")
            return b""

        dedup = stack.enter_context(
            rifl.Deduplicator(f"sqlite:///{tmp_path / 'target.db'}", methods={METHOD: "idempotent"})
        )
        shop = stack.enter_context(
            serve(
                "sync",
                [generic("shop.v1.Payments", {"Pay": pay})],
                dedup=dedup,
                add=lambda server: sharedlog.add_target_to_server(
                    server, dedup, {"orders": [METHOD]}, token=SHOWN
                ),
            )
        )
        player = house.player(declared(shop, token=SHOWN))
        for number in range(40):
            log.publish_call("orders", METHOD, b"%d" % number, key=b"%d" % number)
            if number == 20:
                until(lambda: len(receipts) > 10, "some are paid", 60)
                group.replicas["r0"].kill()
        until(lambda: len(receipts) == 40, "all are paid", 100)
        house.wait_for_state(player, "N")
        house.told_that(player, lambda told: told.lag == 0 and not told.in_flight)
        for substream in range(2):
            there = [each.position for each in log.read("orders", substream)]
            assert [receipts[each] for each in there] == [{n + 1} for n in range(len(there))]
            balance = bank.Balance(
                bank_pb2.BalanceRequest(account=f"{substream}"),
                metadata=[rifl.key(f"the balance of {substream}")],
            )
            assert balance.balance_cents == len(there)
        player.close()
    assert max(tries.values()) > 1
