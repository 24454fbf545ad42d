"""A target whose process some messages kill, begun again each time: a fork a life.

python -m tests.sharedlog.player.dying_target KIND DIRECTORY PORT METHOD_KIND STORE

It prints a line before each life, and ends once its standard input is closed.
"""

import asyncio
import importlib
import os
import select
import signal
import sys
from pathlib import Path

import rifl
import rifl.aio
import sharedlog
from tests.sharedlog.player import target_process

KILLS = b"kills"


def ran(directory):
    """The messages that its handlers began with, in order."""
    return (Path(directory) / "ran").read_text().split()


def _killing(handler, file):
    def begin(request):
        os.write(file, request + b"\n")
        if request == KILLS:
            os._exit(1)

    def sync(request, context):
        begin(request)
        return handler(request, context)

    async def coroutine(request, context):
        begin(request)
        return await handler(request, context)

    return coroutine if asyncio.iscoroutinefunction(handler) else sync


def _serve(kind, directory, port, method, url):
    file = os.open(Path(directory) / "ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    if method == "atomic":
        handlers = target_process.reserve, target_process.reserve_async
    else:
        handlers = target_process.noting(directory)
    handler = _killing(handlers[kind == "aio"], file)
    if kind == "sync":
        target_process.serve_sync(handler, url, method, port)
    else:
        asyncio.run(target_process.serve_aio(handler, url, method, port))


def _load(url):
    """Import before the first fork what each life would import."""
    importlib.import_module(f"rifl._stores.{url.partition(':')[0]}.store")
    return rifl.Deduplicator, rifl.aio.transaction, sharedlog.add_target_to_server


def main(*arguments):
    """Live, again and again."""
    _load(arguments[-1])
    while True:
        print("lives", flush=True)
        child = os.fork()
        if not child:
            _serve(*arguments)
            os._exit(0)
        watched = os.pidfd_open(child)
        there, _, _ = select.select([watched, sys.stdin], [], [])
        if sys.stdin in there:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
        os.waitpid(child, 0)
        os.close(watched)


if __name__ == "__main__":
    main(*sys.argv[1:])
