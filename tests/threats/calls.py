"""The RPCs of servers that grant ids: leases, sessions, outcomes, and the methods themselves."""

from __future__ import annotations

from typing import Any

from lease_server.v1 import lease_server_pb2 as pb
from rifl.v1 import rifl_pb2
from tests.helpers.raw import SESSION_SECRET
from tests.threats.case import Case, Code, Door

__all__ = ["METHODS"]

LEASES = "lease_server.v1.LeaseServer"
# In the table: what a user's server has beside ours.
METHODS = "your methods"


def granted(door: Door, role: str) -> Any:
    """A client id of its own."""
    return door.ask(role, _method("Grant"), pb.GrantRequest())


def _method(name: str) -> Any:
    return pb.DESCRIPTOR.services_by_name["LeaseServer"].methods_by_name[name]


class OfClient(Case):
    """About a client id of the caller's; others but a thief show the token of one of their own."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        self.granted = granted(door, "caller")
        if role in ("caller", "thief"):
            self.token = self.granted.token
        elif role == "stranger" and door.mutual:
            self.token = b""
        else:
            self.token = self.stage.own_token(door, role)


class Grant(Case, of=f"{LEASES}/Grant"):
    """Anyone is granted an id of its own."""

    def request(self) -> Any:
        return pb.GrantRequest()

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert reply.client_id in after["leases"]


class Renew(OfClient, of=f"{LEASES}/Renew"):
    """A lease goes on."""

    def request(self) -> Any:
        return pb.RenewRequest(
            client_id=self.granted.client_id, token=self.token, store=self.granted.store
        )

    def check(self, reply: Any, before: Any, after: Any) -> None:
        client_id = self.granted.client_id
        assert after["leases"][client_id] > before["leases"][client_id]


class KeepAlive(Renew, of=f"{LEASES}/KeepAlive"):
    """The same on a stream, whose answers say what is refused."""

    at = ("calls, aio",)

    def verdict(self, reply: Any) -> Code:
        return {"": Code.OK, "NOT_YOURS": Code.PERMISSION_DENIED}[reply.refused]


class Release(OfClient, of=f"{LEASES}/Release"):
    """A lease ends."""

    def request(self) -> Any:
        return pb.ReleaseRequest(client_id=self.granted.client_id, token=self.token)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert self.granted.client_id in before["leases"]
        assert self.granted.client_id not in after["leases"]


class OpenSession(Case, of=f"{LEASES}/OpenSession", use="of a new name"):
    """Anyone who brings a secret, or has a certificate, is the first one to open a name."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        self.session = f"nightly {self.stage.number()}"

    def request(self) -> Any:
        return pb.OpenSessionRequest(name=self.session, secret=_SECRETS.get(self.role, b"x" * 16))

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert reply.created
        assert reply.client_id not in before["sessions"]
        assert reply.client_id in after["sessions"]


class OfSession(OpenSession):
    """About a session that the caller has open."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        opens = pb.OpenSessionRequest(name=self.session, secret=SESSION_SECRET)
        self.opened = door.ask("caller", _method("OpenSession"), opens)


class Join(OfSession, of=f"{LEASES}/OpenSession", use="of a caller's session"):
    """Over mutual TLS each certificate has names of its own: another opens another session."""

    def verdict(self, reply: Any) -> Code:
        if reply.client_id == self.opened.client_id:
            return Code.OK
        assert reply.created
        return Code.PERMISSION_DENIED

    def kept(self) -> Any:
        return self.stage.state()["sessions"][self.opened.client_id]

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert not reply.created
        assert reply.token == self.opened.token


class CloseSession(OfSession, of=f"{LEASES}/CloseSession"):
    """A session ends for good."""

    def request(self) -> Any:
        return pb.CloseSessionRequest(name=self.session, secret=_SECRETS.get(self.role, b"x" * 16))

    def refusal(self) -> Code:
        # SESSION_CLOSED: its own name was never opened.
        return Code.FAILED_PRECONDITION if self.door.mutual else self.code

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert before != after
        assert not self.stage.authority.alive(self.opened.client_id)


_SECRETS = {"caller": SESSION_SECRET, "thief": SESSION_SECRET}


class Resolve(OfClient, of="rifl.v1.Outcomes/Resolve"):
    """A call that never came is refused from then on."""

    def request(self) -> Any:
        return rifl_pb2.ResolveRequest(
            client_id=self.granted.client_id,
            token=self.token,
            seq=1,
            store=self.granted.store,
            method=self.stage.method,
        )

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert reply.outcome == rifl_pb2.OUTCOME_NOT_EXECUTED
        assert before != after


class OwnCall(OfClient, of=METHODS, use="under a caller's id"):
    """A new call runs, and an earlier one's answer is given again."""

    @property
    def method(self) -> Any:
        return self.stage.method

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        self.answer = self._call("caller", self.granted.token, 1)

    def _call(self, role: str, token: bytes, seq: int) -> bytes:
        header = self.stage.header(self.granted, token, seq)
        sent = self.stage.request
        return bytes(self.door.ask(role, self.method, sent, ("rifl-bin", header)))

    def request(self) -> Any:
        return None

    def ask(self, request: Any) -> Any:
        return self._call(self.role, self.token, 2)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert before != after
        assert reply != self.answer
        assert before["ran"] != after["ran"]
        assert self._call(self.role, self.token, 1) == self.answer
        assert self.stage.state()["ran"] == after["ran"]
