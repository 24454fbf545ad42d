"""The RPCs of a group's replica, and of its witnesses."""

from __future__ import annotations

from typing import Any

from curp._core.witness_table import WitnessMode
from curp.v1 import curp_pb2 as pb
from tests.helpers.raw import header
from tests.helpers.waiting import until
from tests.threats.calls import OfClient, OfSession
from tests.threats.case import Case, Door

__all__: list[str] = []

GROUP, WITNESS = "curp.v1.Group", "curp.v1.Witness"


class Configuration(Case, of=f"{GROUP}/Configuration"):
    """Who makes up the group."""

    def request(self) -> Any:
        return pb.ConfigurationRequest()

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert reply.leader == self.stage.replica.settings.address
        assert before == after


class Sync(OfClient, of=f"{GROUP}/Sync"):
    """Whether a call is in the log."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        header = self.stage.header(self.granted, self.granted.token, 1)
        door.ask("caller", self.stage.method, self.stage.request, ("rifl-bin", header))

    def request(self) -> Any:
        return pb.SyncRequest(
            configuration=self.stage.replica.configuration().configuration,
            client_id=self.granted.client_id,
            seq=1,
            token=self.token,
        )

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert reply.verdict == pb.SyncReply.SYNCED


class Status(Case, of=f"{GROUP}/Status"):
    """What a replica does, and what its engine and witnesses said."""

    def request(self) -> Any:
        return pb.GroupStatusRequest()

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert reply.role == "leader"
        assert before == after


class ChangeWitnesses(Case, of=f"{GROUP}/ChangeWitnesses"):
    """The list of witnesses, which are told what signs tokens."""

    def request(self) -> Any:
        found = self.stage.replica.configuration()
        self.wanted = [] if found.witnesses else [self.stage.spare.ports.plaintext]
        return pb.ChangeWitnessesRequest(witnesses=self.wanted, configuration=found.configuration)

    def kept(self) -> Any:
        return super().kept(), self.stage.spare.state()

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert list(reply.witnesses) == self.wanted
        assert list(self.stage.replica.configuration().witnesses) == self.wanted
        assert before != after


class Transfer(Case, of=f"{GROUP}/Transfer"):
    """The leadership, which comes back here: there is no other replica."""

    def request(self) -> Any:
        # The one that is named would be waited for; a name that was written is seen.
        return pb.TransferRequest(replica="" if self.role == "operator" else "another")

    def ask(self, request: Any) -> Any:
        number = self.stage.replica.configuration().configuration
        reply = super().ask(request)
        until(lambda: self.stage.replica.configuration().configuration != number, "its end")
        self.stage.lead()
        return reply

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert before["logged"] != after["logged"]


class FinalizeUpgrade(Case, of=f"{GROUP}/FinalizeUpgrade"):
    """An upgrade, from which there is no way back."""

    def request(self) -> Any:
        return pb.FinalizeUpgradeRequest(version=1, who="a test")

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert reply.version == self.stage.application_version == 1


class EndSession(OfSession, of=f"{GROUP}/EndSession"):
    """Anyone's session."""

    def request(self) -> Any:
        return pb.EndSessionRequest(name=self.session)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert list(reply.client_ids) == [self.opened.client_id]
        assert not self.stage.authority.alive(self.opened.client_id)


class RotateSecret(Case, of=f"{GROUP}/RotateSecret"):
    """What signs clients' tokens."""

    def request(self) -> Any:
        return pb.RotateSecretRequest()

    def check(self, reply: Any, before: Any, after: Any) -> None:
        old, new = ([key_id for key_id, _ in state["secrets"]] for state in (before, after))
        assert reply.key_id == new[0]
        assert reply.key_id not in old


class AtWitness(Case):
    """At one that serves, and holds one call of the caller's."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        self.stage.begin()
        self.number = self.stage.table.configuration
        held = self._record(b"held", self.stage.token(_CLIENT, door.transport), seq=1)
        door.ask("caller", Record.descriptor(), held)

    def _record(self, request: bytes, token: bytes, seq: int) -> Any:
        call = pb.WitnessedCall(
            header=header(_CLIENT, token, seq),
            method="/bank.v1.Bank/Deposit",
            request=request,
            conflict_keys=[seq],
        )
        return pb.RecordRequest(configuration=self.number, call=call, log=self.stage.log)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert reply.verdict == pb.RecordReply.ACCEPTED
        assert before != after


_CLIENT, _OTHER = 7, 8


class Record(AtWitness, of=f"{WITNESS}/Record"):
    """A call is kept until its leader has it in the log."""

    @staticmethod
    def descriptor() -> Any:
        return pb.DESCRIPTOR.services_by_name["Witness"].methods_by_name["Record"]

    def request(self) -> Any:
        whose = _CLIENT if self.role in ("caller", "thief") else _OTHER
        return self._record(b"new", self.stage.token(whose, self.door.transport), seq=2)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        super().check(reply, before, after)
        assert len(self.stage.table) == 2


class Records(Record, of=f"{WITNESS}/Records"):
    """The same on a stream."""

    def request(self) -> Any:
        return pb.RecordsRequest(first=1, records=[super().request().SerializeToString()])

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert list(reply.verdicts) == [pb.RecordReply.ACCEPTED]
        assert len(self.stage.table) == 2


class Watch(AtWitness, of=f"{WITNESS}/Watch"):
    """Nothing is sent."""

    def request(self) -> Any:
        return pb.WatchRequest()

    def ask(self, request: Any) -> Any:
        return self.door.ask(self.role, self.method, request, silent=True)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert (reply, before) == (None, after)


class Collect(AtWitness, of=f"{WITNESS}/Collect"):
    """Calls that are in the log are dropped."""

    def request(self) -> Any:
        synced = [pb.Collected(client_id=_CLIENT, seq=1)]
        return pb.CollectRequest(configuration=self.number, group=self.stage.group, synced=synced)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        super().check(reply, before, after)
        assert len(self.stage.table) == 0


class Freeze(AtWitness, of=f"{WITNESS}/Freeze"):
    """The calls are read, and no more are taken."""

    def request(self) -> Any:
        return pb.FreezeRequest(configuration=self.number, group=self.stage.group)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        super().check(reply, before, after)
        assert [each.request for each in reply.calls] == [b"held"]
        assert self.stage.table.mode is WitnessMode.FROZEN


class Start(AtWitness, of=f"{WITNESS}/Start"):
    """It serves the next number, empty."""

    def request(self) -> Any:
        return self.stage.start_request()

    def check(self, reply: Any, before: Any, after: Any) -> None:
        super().check(reply, before, after)
        assert self.stage.table.configuration == self.number + 1


class WitnessStatus(AtWitness, of=f"{WITNESS}/Status"):
    """What it holds, in numbers."""

    def request(self) -> Any:
        return pb.WitnessStatusRequest()

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert (reply.mode, reply.held) == ("normal", 1)
        assert before == after
