"""A server that keeps what it hears: what a process has sent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

# What may not be heard.
SECRET = "0123456789abcdef"  # noqa: S105 - of tests


class Wire:
    """A server that keeps what it hears, and serves nothing."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))  # type: ignore[arg-type]
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, details: Any) -> Any:
        """Take each call for one of bytes."""

        def heard(requests: Any, context: Any) -> Any:
            self.heard.append(f"{details.method} {details.invocation_metadata} {list(requests)}")
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "nothing is served here")

        return grpc.stream_stream_rpc_method_handler(heard)

    @property
    def shown(self) -> bool:
        """Whether the secret came."""
        return any(SECRET in each for each in self.heard)

    def close(self) -> None:
        self._server.stop(None).wait()
