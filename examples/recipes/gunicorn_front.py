"""A WSGI application under gunicorn: each worker connects after the fork.

What is made at the application's import is made in gunicorn's master, if it preloads: a worker
that uses it is told so, before anything is sent. Needs the extra ``rifl-grpc[examples]``. Run
it: ``python -m examples.recipes.gunicorn_front``.
"""

from __future__ import annotations

import os

from flask import Flask, Response, jsonify, request

import rifl
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect
from examples.recipes.bank_server import unlucky_bank
from examples.recipes.customers import key_of
from examples.recipes.statuses import status_of
from examples.recipes.web_process import post, serving

app = Flask(__name__)


def connect() -> None:
    """Open this process's channel: for post_fork."""
    app.extensions["rifl"] = rifl.connect(os.environ["BANK_TARGET"], session="web payments")


def disconnect() -> None:
    """Close it: for worker_exit."""
    app.extensions["rifl"].close()


@app.post("/deposits")
def deposit() -> tuple[Response, int]:
    """Pay in once for each Idempotency-Key."""
    body = request.get_json()
    key = key_of(body["account"], request.headers["Idempotency-Key"])
    payment = bank_pb2.DepositRequest(reference="web", **body)
    stub = bank_pb2_grpc.BankStub(app.extensions["rifl"])
    receipt = stub.Deposit(payment, timeout=10, metadata=[key])
    return jsonify(entry=receipt.entry, worker=os.getpid()), 200


@app.errorhandler(rifl.CallError)
def failed(error: rifl.CallError) -> tuple[Response, int]:
    """Say whether the customer is to try again, under the same key."""
    status, text = status_of(error)
    return jsonify(error=text), status


def made_at_import() -> Flask:
    """Build an application the wrong way: gunicorn's master makes what its workers use."""
    wrong = Flask("wrong")
    channel = rifl.connect(os.environ["BANK_TARGET"], session="web payments")
    dedup = rifl.Deduplicator("memory:")

    @wrong.post("/deposits")
    def deposit() -> tuple[Response, int]:
        refused = {}
        for name, use in (("channel", channel.session.open), ("server", dedup.interceptor)):
            try:
                use()
            except rifl.core.ForkedProcess as error:
                refused[name] = error.reason
        return jsonify(refused), 500

    return wrong


def main() -> None:
    """Pay over HTTP, through whichever worker answers; it is paid once."""
    gunicorn = ("gunicorn", "--bind", "fd://{fd}", "--log-level", "warning")
    with unlucky_bank() as served:
        environment = served.environment()
        name = "examples.recipes.gunicorn_front"
        right = ("--config", "python:examples.recipes.gunicorn_conf", f"{name}:app")
        with serving(*gunicorn, *right, environment=environment) as url:
            rent = {"account": "alice", "cents": 500}
            answers = [post(f"{url}/deposits", rent, "rent") for _ in range(10)]
            expect("status of each request", {status for status, _ in answers}, {200})
            expect("entries in the books", {answer["entry"] for _, answer in answers}, {1})
            other = {"account": "alice", "cents": 900}
            expect("status of another payment", post(f"{url}/deposits", other, "rent")[0], 422)
            unknown = {"account": "nobody", "cents": 500}
            expect("status of an unknown account", post(f"{url}/deposits", unknown, "x")[0], 409)
        expect("times the handler ran", served.bank.runs, 1)
        expect("balance", served.ledger.balance("alice"), 500)

        wrong = ("--preload", f"{name}:made_at_import()")
        with serving(*gunicorn, *wrong, environment=environment) as url:
            _, refused = post(f"{url}/deposits")
            expect("channel made at import, in a worker", refused["channel"], "FORKED_PROCESS")
            expect("Deduplicator made at import", refused["server"], "FORKED_PROCESS")


if __name__ == "__main__":
    main()
