"""Forks with a channel open, and uses it in the child: ``python -m tests.client.forker TARGET``.

In a process of its own: gRPC's threads of other tests must not be there at the fork.
Prints how many uses were refused of how many.
"""

from __future__ import annotations

import os
import sys

import rifl
import rifl.core
from rifl._client.sync_streams import StreamCall
from rifl.core._calling.invocation import Invocation
from rifl.core._shared.errors import ForkedProcess
from tests.client.protocol_server import ECHO


def main(target: str) -> int:
    with rifl.connect(target) as channel:
        method = channel.unary_unary(ECHO)
        method(b"")
        future = method.future(b"")
        future.result()
        waiting = method.future(b"")
        stream = StreamCall(channel._client, Invocation(ECHO, 0.0), lambda header, timeout: None)
        bidirectional = channel.stream_stream(ECHO)
        uses = (
            lambda: waiting.result(),
            lambda: waiting.code(),
            lambda: next(stream),
            lambda: stream.code(),
            lambda: bidirectional(iter([b""])),
            lambda: channel.batch(ECHO, [rifl.BatchItem(b"")]),
            lambda: method(b""),
            lambda: method.with_call(b""),
            lambda: method.future(b""),
            lambda: channel.unary_unary(ECHO),
            lambda: channel.unary_stream(ECHO),
            lambda: channel.stream_unary(ECHO),
            lambda: channel.stream_stream(ECHO),
            lambda: channel.subscribe(print),
            lambda: channel.unsubscribe(print),
            lambda: channel.session.open(),
            lambda: channel.session.resolve(rifl.core.RpcId(1, 1)),
            channel.__enter__,
        )
        with channel._client.lock:
            # Held by another thread at the fork: the child must not wait for it.
            child = os.fork()
        if child == 0:
            refused = 0
            for use in uses:
                try:
                    use()
                except ForkedProcess:
                    refused += 1
            channel.close()
            os._exit(100 + refused)
        refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - 100
        still = method(b"still here").decode()
    print(f"{refused} of {len(uses)} refused, {still}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
