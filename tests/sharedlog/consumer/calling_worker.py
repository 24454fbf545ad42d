"""Processes of the tests of calls: ``python -m tests.sharedlog.consumer.calling_worker ROLE ...``.

``service FILE PORT``: counts what it is called with, in a file; ``consumer LOG STORE TARGET``:
calls it for each order, and bills what it answers. Each tells on standard output that it begins.
"""

import json
import signal
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

import rifl
import sharedlog
from tests.echo import METHOD


def tell(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def serve(file, port):
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS ran (id INTEGER PRIMARY KEY, what TEXT)")
    with rifl.Deduplicator(f"sqlite:///{file}", methods={METHOD: "atomic"}) as dedup:

        def count(request, context):
            with rifl.transaction(context) as connection:
                inserted = connection.execute(
                    "INSERT INTO ran (what) VALUES (?)", (request.decode(),)
                )
                reply = str(inserted.lastrowid).encode()
                rifl.record(context, reply, connection)
            return reply

        server = grpc.server(ThreadPoolExecutor(8), interceptors=[dedup.interceptor()])
        method = grpc.unary_unary_rpc_method_handler(count)
        service = grpc.method_handlers_generic_handler("test.Echo", {"Do": method})
        server.add_generic_rpc_handlers((service,))
        dedup.add_to_server(server)
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        tell("begins")
        stopped.wait()
        server.stop(None).wait()


def consume(url, store, target):
    with sharedlog.open(url) as log:
        consumer = sharedlog.Consumer(log, "billing", ["orders"], store)

        @consumer.on("orders", json.loads)
        def bill(number, effects):
            reply = effects.channel(target).unary_unary(METHOD)(str(number).encode())
            place = "?" if store.startswith("sqlite") else "%s"
            effects.connection.execute(
                "INSERT INTO bill VALUES (?, ?)".replace("?", place), (int(reply), number)
            )
            effects.publish("invoices", str(number), key=str(number))

        signal.signal(signal.SIGTERM, lambda *_: consumer.close())
        tell("begins")
        consumer.run()


if __name__ == "__main__":
    {"service": serve, "consumer": consume}[sys.argv[1]](*sys.argv[2:])
