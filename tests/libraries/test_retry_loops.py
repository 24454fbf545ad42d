"""tenacity and backoff around a stub (docs/how-to/retry-loops.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import backoff
import grpc
import pytest
import tenacity

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from rifl.testing import Fault, serve
from tests.helpers.pages import page

REQUEST = bank_pb2.DepositRequest(reference="order 7", account="alice", cents=5)
DRAWN = "drawn by: openssl rand -hex 32"
Deposit = Callable[[bank_pb2.DepositRequest], bank_pb2.Receipt]


class _Bank(bank_pb2_grpc.BankServicer):
    """Counts its runs; each account but alice's is refused."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def Deposit(self, request: Any, context: Any) -> Any:  # noqa: N802 - the proto's
        self.runs.append(request.reference)
        if request.account != "alice":
            context.abort(grpc.StatusCode.UNAVAILABLE, "the vault is closed")
        return bank_pb2.Receipt(entry=len(self.runs))


def _plainly(deposit: Deposit) -> Deposit:
    return tenacity.retry(deposit)


def _by_tenacity(deposit: Deposit) -> Deposit:
    return tenacity.retry(
        retry=tenacity.retry_if_exception(rifl.may_retry),
        stop=tenacity.stop_after_attempt(5),
        reraise=True,
    )(deposit)


def _by_backoff(deposit: Deposit) -> Deposit:
    return backoff.on_exception(
        backoff.constant,
        rifl.CallError,
        interval=0,
        max_tries=5,
        giveup=lambda error: not rifl.may_retry(error),
    )(deposit)


class _Path:
    """A bank whose first answer is lost, and a channel that does not ask again itself."""

    def __init__(self, session: str | None) -> None:
        self.bank = _Bank()
        self.service = serve(
            lambda server: bank_pb2_grpc.add_BankServicer_to_server(self.bank, server)
        )
        self._session = session

    def __enter__(self) -> _Path:
        service = self.service.__enter__()
        once = rifl.RetryPolicy(max_attempts=1)
        self.channel = service.connect(
            session=self._session, secret=self._session and DRAWN, retry=once
        )
        self.stub = bank_pb2_grpc.BankStub(self.channel)
        service.faults.arm(Fault.DROP_ANSWER, method="/bank.v1.Bank/Deposit")
        return self

    def __exit__(self, *ended: Any) -> None:
        self.channel.close()
        self.service.__exit__(*ended)

    def keyed(self, request: bank_pb2.DepositRequest) -> bank_pb2.Receipt:
        return self.stub.Deposit(request, timeout=30, metadata=[rifl.key(request.reference)])

    def unkeyed(self, request: bank_pb2.DepositRequest) -> bank_pb2.Receipt:
        return self.stub.Deposit(request, timeout=30)


def test_a_plain_retry_makes_a_second_call() -> None:
    """What the page warns of: the call without a key whose answer was lost runs twice."""
    with _Path(None) as path:
        assert _plainly(path.unkeyed)(REQUEST).entry == 2
    assert path.bank.runs == ["order 7"] * 2


@pytest.mark.parametrize("loop", [_by_tenacity, _by_backoff])
def test_a_loop_by_may_retry_runs_a_keyed_call_once(loop: Callable[[Deposit], Deposit]) -> None:
    """Under its key the lost answer is fetched."""
    with _Path("orders") as path:
        assert loop(path.keyed)(REQUEST).entry == 1
    assert path.bank.runs == ["order 7"]


@pytest.mark.parametrize("loop", [_by_tenacity, _by_backoff])
def test_a_loop_by_may_retry_ends_where_it_cannot_know(
    loop: Callable[[Deposit], Deposit],
) -> None:
    """Without a key the lost answer is unknown, and told."""
    with _Path(None) as path, pytest.raises(rifl.CallError) as caught:
        loop(path.unkeyed)(REQUEST)
    assert caught.value.outcome is rifl.Outcome.UNKNOWN
    assert path.bank.runs == ["order 7"]


@pytest.mark.parametrize("loop", [_by_tenacity, _by_backoff])
def test_a_loop_by_may_retry_takes_the_handlers_answer(
    loop: Callable[[Deposit], Deposit],
) -> None:
    """UNAVAILABLE, if the handler says so, is an answer."""
    other = bank_pb2.DepositRequest(reference="other", account="bob", cents=5)
    with _Path("orders") as path, pytest.raises(rifl.CallError) as caught:
        loop(path.keyed)(other)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert path.bank.runs == ["other"]


def test_what_the_page_shows_runs() -> None:
    """The page's function, over a path that loses an answer."""
    text = page("retry-loops.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    with _Path("orders") as path:
        names: dict[str, Any] = {"bank": path.stub, "bank_pb2": bank_pb2, "rifl": rifl}
        exec(compile(code, "docs", "exec"), names)  # noqa: S102 - our own docs
        assert names["deposit"](REQUEST).entry == 1
    assert path.bank.runs == ["order 7"]
