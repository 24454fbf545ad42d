"""A FastAPI application: its lifespan opens the channel and closes it.

Each worker process of uvicorn runs the lifespan itself, on the loop that its requests are
served on. Needs the extra ``rifl-grpc[examples]``. Run it:
``python -m examples.recipes.fastapi_front``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import rifl
import rifl.aio
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect
from examples.recipes.bank_server import unlucky_bank
from examples.recipes.customers import key_of
from examples.recipes.statuses import status_of
from examples.recipes.web_process import post, serving


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep one channel open while the application serves."""
    async with rifl.aio.connect(os.environ["BANK_TARGET"], session="web payments") as channel:
        app.state.bank = bank_pb2_grpc.BankStub(channel)
        yield


app = FastAPI(lifespan=lifespan)


class Payment(BaseModel):
    """What is posted."""

    account: str
    cents: int


@app.post("/deposits")
async def deposit(
    payment: Payment, request: Request, idempotency_key: Annotated[str, Header()]
) -> dict[str, int]:
    """Pay in once for each Idempotency-Key."""
    receipt = await request.app.state.bank.Deposit(
        bank_pb2.DepositRequest(reference="web", **payment.model_dump()),
        timeout=10,
        metadata=[key_of(payment.account, idempotency_key)],
    )
    return {"entry": receipt.entry}


@app.exception_handler(rifl.CallError)
async def failed(request: Request, error: rifl.CallError) -> JSONResponse:
    """Say whether the customer is to try again, under the same key."""
    status, text = status_of(error)
    return JSONResponse({"error": text}, status)


def main() -> None:
    """Pay over HTTP, twice under one key; it is paid once."""
    with unlucky_bank() as served:
        uvicorn = ("uvicorn", "--fd", "{fd}", "--log-level", "warning")
        command = (*uvicorn, "examples.recipes.fastapi_front:app")
        with serving(*command, environment=served.environment()) as url:
            rent = {"account": "alice", "cents": 500}
            paid = post(f"{url}/deposits", rent, "rent")
            expect("answer over a path that broke", paid, (200, {"entry": 1}))
            expect("answer to the retry", post(f"{url}/deposits", rent, "rent"), paid)
            other = {"account": "alice", "cents": 900}
            expect("status of another payment", post(f"{url}/deposits", other, "rent")[0], 422)
            unknown = {"account": "nobody", "cents": 500}
            expect("status of an unknown account", post(f"{url}/deposits", unknown, "x")[0], 409)
            expect("status without a key", post(f"{url}/deposits", rent)[0], 422)
        expect("times the handler ran", served.bank.runs, 1)
        expect("balance", served.ledger.balance("alice"), 500)


if __name__ == "__main__":
    main()
