"""A row's RPC, as it is tried: a request that succeeds for who may, and what it does then."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import grpc
from google.protobuf.descriptor_pool import Default

from tests.threats.people import People, Transport

__all__ = ["CASES", "Case", "Code", "Door"]

Code = grpc.StatusCode
CASES: dict[str, type[Case]] = {}


class Door(NamedTuple):
    """A stage's server, as it is reached by one transport."""

    stage: Any
    people: People
    transport: Transport

    @property
    def mutual(self) -> bool:
        """Whether callers have certificates."""
        return self.transport == "mutual TLS"

    def ask(self, role: str, method: Any, request: Any, *metadata: Any, **how: Any) -> Any:
        """Call as one of the people."""
        address = self.stage.ports.over(self.transport)
        return self.people.ask(role, address, self.transport, method, request, *metadata, **how)


class Case:
    """One RPC, or one use of it, as ``role``; ``of``: ``package.Service/Method``."""

    rpc: ClassVar[str]
    use: ClassVar[str]
    # The stages where it is tried; by default each that serves it.
    at: ClassVar[tuple[str, ...]] = ()
    # How it is refused.
    code: ClassVar[Code] = Code.PERMISSION_DENIED

    def __init_subclass__(cls, *, of: str = "", use: str = "") -> None:
        """Be tried, as the table calls it."""
        if of:
            cls.rpc, cls.use = of, use
            assert cls.name() not in CASES
            CASES[cls.name()] = cls

    @classmethod
    def name(cls) -> str:
        """How the table calls it."""
        return f"{cls.rpc.rpartition('.')[2]} {cls.use}".strip()

    def __init__(self, door: Door, role: str) -> None:
        """Make what the request is about, as who may make it."""
        self.door = door
        self.stage = door.stage
        self.role = role

    @property
    def method(self) -> Any:
        """The descriptor."""
        service, _, name = self.rpc.partition("/")
        return Default().FindServiceByName(service).methods_by_name[name]

    def request(self) -> Any:
        """What is sent."""
        raise NotImplementedError

    def ask(self, request: Any) -> Any:
        """Send it; return the answer. Raises ``RpcError``."""
        return self.door.ask(self.role, self.method, request)

    def verdict(self, reply: Any) -> Code:
        """What an answer says."""
        return Code.OK

    def refusal(self) -> Code:
        """How who may not is told."""
        return self.code

    def kept(self) -> Any:
        """What a refused request leaves as it was: all that the stage holds."""
        return self.stage.state()

    def check(self, reply: Any, before: Any, after: Any) -> None:
        """Assert what was done for who may."""
        raise NotImplementedError
