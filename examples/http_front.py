"""A Flask application in front of a deduplicated gRPC service.

HTTP's ``Idempotency-Key`` (the IETF draft) becomes the key of the gRPC call, so a
browser's retry is the same payment, whichever replica of the front it reaches.
Needs the extra ``rifl-grpc[examples]``. Run it: ``python -m examples.http_front``.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from flask import Flask, Response, jsonify, request
from werkzeug.serving import WSGIRequestHandler, make_server

import rifl
from chaos.faulty_path import FaultyPath
from examples.bank.ledger import Ledger, create_books
from examples.bank.v1 import bank_pb2, bank_pb2_grpc
from examples.checking import expect
from examples.recipes.customers import key_of
from examples.wrap_server import UnluckyBank

# The draft's statuses: no key, a key used for something else, still in progress.
MISSING, REUSED, UNDER_WAY = 400, 422, 409


def front(channel: rifl.Channel) -> Flask:
    """Return the application; the channel belongs to a named session."""
    app = Flask("front")
    stub = bank_pb2_grpc.BankStub(channel)

    @app.post("/deposits")
    def deposit() -> tuple[Response, int]:
        if "Idempotency-Key" not in request.headers:
            return jsonify(error="an Idempotency-Key is needed"), MISSING
        try:
            key = key_of(request.json["account"], request.headers["Idempotency-Key"])
            payment = bank_pb2.DepositRequest(reference="web", **request.json)
            receipt = stub.Deposit(payment, timeout=10, metadata=[key])
        except rifl.core.BadHeader as error:
            return jsonify(error=str(error)), MISSING
        except rifl.core.PayloadMismatch:
            return jsonify(error="this key was used for another payment"), REUSED
        except rifl.core.InProgress:
            return jsonify(error="this payment is in progress"), UNDER_WAY
        return jsonify(entry=receipt.entry, balance_cents=receipt.balance_cents), 200

    return app


def main() -> None:
    """Pay over HTTP, twice under one key and through two fronts; it is paid once."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = stack.enter_context(FaultyPath())
        create_books(directory / "bank.db", [("alice", 0)])
        ledger = stack.enter_context(contextlib.closing(Ledger(directory / "bank.db")))
        bank = UnluckyBank(ledger, path)
        dedup = stack.enter_context(rifl.Deduplicator(f"sqlite:///{directory / 'rifl.db'}"))
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        bank_pb2_grpc.add_BankServicer_to_server(bank, server)
        dedup.add_to_server(server)
        path.lead_to(server.add_insecure_port("127.0.0.1:0"))
        server.start()
        stack.callback(lambda: server.stop(grace=None).wait())

        # All replicas of the front open the same session, by its secret: its keys are theirs
        # together.
        secret = secrets.token_hex(32)
        ports = []
        for _ in range(2):
            channel = stack.enter_context(
                rifl.connect(path.target, session="web payments", secret=secret)
            )
            ports.append(stack.enter_context(_http(front(channel))))

        rent = {"account": "alice", "cents": 500}
        paid = _post(ports[0], rent, "rent")
        expect("answer over a path that broke", paid, (200, {"entry": 1, "balance_cents": 500}))
        expect("answer to the retry, by the other front", _post(ports[1], rent, "rent"), paid)
        expect("times the handler ran", bank.runs, 1)
        other = {"account": "alice", "cents": 900}
        expect("status of another payment under it", _post(ports[1], other, "rent")[0], REUSED)
        expect("status without a key", _post(ports[0], rent, None)[0], MISSING)
        expect("balance", ledger.balance("alice"), 500)


class _Quiet(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing of each request."""


@contextlib.contextmanager
def _http(app: Flask) -> Iterator[int]:
    http = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=http.serve_forever, name="http")
    thread.start()
    try:
        yield http.server_port
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def _post(port: int, body: dict[str, Any], key: str | None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    posted = urllib.request.Request(
        f"http://127.0.0.1:{port}/deposits", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(posted, timeout=20) as answer:  # noqa: S310 - our own URL
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


if __name__ == "__main__":
    main()
