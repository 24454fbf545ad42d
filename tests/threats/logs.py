"""The RPCs of a served log, of a player's steps there, and of a target."""

from __future__ import annotations

from typing import Any

from sharedlog._core.holds import BEGINNING, hold_key, take
from sharedlog._core.player.rows import row_key
from sharedlog._core.producers import identity_key, retired_key
from sharedlog.v1 import log_pb2 as pb
from sharedlog.v1 import sharedlog_pb2, steps_pb2, target_pb2
from tests.sharedlog.target.player import TAG, message, place
from tests.threats.case import Case, Code, Door

__all__: list[str] = []

LOG, STEPS, TARGET = "sharedlog.v1.Log", "sharedlog.v1.Steps", "sharedlog.v1.Target"
TOKEN, GUESS = b"t" * 16, b"g" * 16


class AtLog(Case):
    """At a served log; ``mine``: a name that publisher and follower may use."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        self.log = self.stage.log
        self.mine = f"shop-{self.stage.number()}"

    def make(self, kind: Any, **fields: Any) -> Any:
        """A request for this log."""
        return kind(incarnation=self.log.incarnation, **fields)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        """Assert that it was a look, and what it showed."""
        assert before == after
        self.shown(reply)

    def shown(self, reply: Any) -> None:
        """Assert what an answer says."""
        raise NotImplementedError


class Changes(AtLog):
    """A call that changes the log."""

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert before != after
        self.shown(reply)


class Describe(AtLog, of=f"{LOG}/Describe"):
    """What the log is."""

    def request(self) -> Any:
        return pb.DescribeRequest()

    def shown(self, reply: Any) -> None:
        assert reply.incarnation == self.log.incarnation


class MakeStream(Changes, of=f"{LOG}/MakeStream", use="of a new stream"):
    """For good."""

    def request(self) -> Any:
        return self.make(pb.MakeStreamRequest, name=self.mine, substreams=1, retention_us=0)

    def shown(self, reply: Any) -> None:
        assert self.mine in [each.name for each in self.log.streams()]


class FindStream(AtLog, of=f"{LOG}/MakeStream", use="to find one"):
    """For others it does not exist."""

    code = Code.NOT_FOUND

    def request(self) -> Any:
        return self.make(pb.MakeStreamRequest, name="orders", find=True)

    def refusal(self) -> Code:
        return Code.PERMISSION_DENIED if self.role == "stranger" else self.code

    def shown(self, reply: Any) -> None:
        assert reply.substreams == 1


class ListStreams(AtLog, of=f"{LOG}/ListStreams"):
    """Those that the caller may use."""

    def request(self) -> Any:
        return self.make(pb.ListStreamsRequest)

    def shown(self, reply: Any) -> None:
        of = {"publisher": {"orders"}, "follower": {"orders"}, "player": {"letters"}}
        of["colleague"] = {"orders", "letters"}
        found = {each.name for each in reply.streams}
        if self.role == "operator":
            assert found == {each.name for each in self.log.streams()}
        else:
            assert found == of.get(self.role, set())


class Grant(AtLog, of=f"{LOG}/Grant"):
    """A producer of one's own."""

    def request(self) -> Any:
        return self.make(pb.GrantRequest, token=TOKEN, window=1)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert identity_key(reply.id) not in before["keys"]
        assert identity_key(reply.id) in after["keys"]


class OfProducer(AtLog):
    """About a producer of the publisher's; others but a thief guess its token."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        grant = self.make(pb.GrantRequest, token=TOKEN, window=1)
        self.granted = door.ask("publisher", _method("Grant"), grant)

    def refusal(self) -> Code:
        return Code.PERMISSION_DENIED if self.role == "stranger" else self.code

    def producer(self) -> pb.Producer:
        token = TOKEN if self.role in ("publisher", "thief") else GUESS
        return pb.Producer(id=self.granted.id, token=token, window=1)


class GetProducer(OfProducer, of=f"{LOG}/GetProducer"):
    """How far it is."""

    def request(self) -> Any:
        return self.make(pb.GetProducerRequest, producer=self.producer())

    def shown(self, reply: Any) -> None:
        assert reply.producer.id == self.granted.id
        assert not reply.producer.token


class ListProducers(AtLog, of=f"{LOG}/ListProducers"):
    """Everyone's, without their tokens."""

    def request(self) -> Any:
        return self.make(pb.ListProducersRequest)

    def shown(self, reply: Any) -> None:
        assert {each.producer.token for each in reply.producers} <= {b""}


class Retire(OfProducer, of=f"{LOG}/Retire", use="with its token"):
    """A producer ends."""

    def request(self) -> Any:
        return self.make(pb.RetireRequest, producer=self.producer())

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert retired_key(self.granted.id) not in before["keys"]
        assert retired_key(self.granted.id) in after["keys"]


class RetireOthers(Retire, of=f"{LOG}/Retire", use="without its token"):
    """Anyone's."""

    code = Code.PERMISSION_DENIED

    def producer(self) -> pb.Producer:
        return pb.Producer(id=self.granted.id)


class Append(Changes, of=f"{LOG}/Append"):
    """Messages, under a name that is its own."""

    def request(self) -> Any:
        body = sharedlog_pb2.Envelope(version=1, body=b"an order").SerializeToString()
        named = pb.Named(name=self.mine, seq=1, content=TOKEN)
        messages = [pb.NewMessage(tag="orders/0", envelope=body)]
        return self.make(pb.AppendRequest, named=named, messages=messages)

    def shown(self, reply: Any) -> None:
        assert reply.lsn == self.log._engine.tail()


class GetNamed(AtLog, of=f"{LOG}/GetNamed"):
    """How far a name is."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        self.log.producer(self.mine).publish("orders", b"an order", seq=3)

    def request(self) -> Any:
        return self.make(pb.GetNamedRequest, name=self.mine)

    def shown(self, reply: Any) -> None:
        assert reply.highest_seq == 3


class ForgetNamed(GetNamed, of=f"{LOG}/ForgetNamed"):
    """A name begins anew."""

    def request(self) -> Any:
        return self.make(pb.ForgetNamedRequest, name=self.mine)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert before != after
        assert reply.highest_seq == 3


class RaiseFence(Changes, of=f"{LOG}/RaiseFence"):
    """A fence of a name that is its own."""

    def request(self) -> Any:
        return self.make(pb.RaiseFenceRequest, name=self.mine)

    def shown(self, reply: Any) -> None:
        assert reply.number == 1


class OfMessage(AtLog):
    """About a message, and a hold at it."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        self.log.publish("orders", b"an order")
        self.tail = self.log._engine.tail()
        hold = take(self.mine, {"orders/0": BEGINNING}, self.log.incarnation, 1, 1)
        self.log._run(hold)


class Read(OfMessage, of=f"{LOG}/Read"):
    """A stream's messages."""

    def request(self) -> Any:
        start = pb.Start(lsn=self.tail)
        return self.make(pb.ReadRequest, stream="orders", limit=1, start=start)

    def shown(self, reply: Any) -> None:
        assert b"an order" in reply.messages[0].envelope


class Follow(OfMessage, of=f"{LOG}/Follow"):
    """The same as they come, with a hold of its own."""

    def request(self) -> Any:
        self.own = f"{self.mine}-new"
        return self.make(pb.FollowRequest, stream="orders", name=self.own)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        key = hold_key(self.own, "orders/0")
        assert key not in before["keys"]
        assert key in after["keys"]


class MoveHold(OfMessage, of=f"{LOG}/MoveHold"):
    """A hold of its own goes on, and what it kept may be trimmed."""

    def request(self) -> Any:
        done = [pb.Done(idle_through=self.tail)]
        return self.make(pb.MoveHoldRequest, stream="orders", name=self.mine, done=done)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        key = hold_key(self.mine, "orders/0")
        assert before["keys"][key] != after["keys"][key]


class ListHolds(OfMessage, of=f"{LOG}/ListHolds", use="of its name"):
    """A follower's."""

    def request(self) -> Any:
        return self.make(pb.ListHoldsRequest, name=self.mine)

    def shown(self, reply: Any) -> None:
        assert {each.name for each in reply.holds} == {self.mine}


class ListAllHolds(ListHolds, of=f"{LOG}/ListHolds", use="of all"):
    """Everyone's."""

    def request(self) -> Any:
        return self.make(pb.ListHoldsRequest)

    def shown(self, reply: Any) -> None:
        assert self.mine in {each.name for each in reply.holds}


class EndHolds(OfMessage, of=f"{LOG}/EndHolds"):
    """Anyone's hold."""

    def request(self) -> Any:
        return self.make(pb.EndHoldsRequest, name=self.mine, forget=True)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        key = hold_key(self.mine, "orders/0")
        assert key in before["keys"]
        assert key not in after["keys"]


class Trim(AtLog, of=f"{LOG}/Trim"):
    """Rows that are no longer needed are removed."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        for name in {each.name for each in self.log.holds()}:
            self.log.forget_hold(name)
        for _ in range(2):
            self.log.publish("orders", b"an order")

    def request(self) -> Any:
        return self.make(pb.TrimRequest)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert reply.rows > 0
        assert after["first"] > before["first"]


class OfPlayer(OfMessage):
    """A step of the player's, or of one that the colleague plays."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        self.player = "poster" if role == "colleague" else self.stage.player
        self.key = row_key(self.stage.player, "told", f"shop{self.stage.number()}")


class Get(OfPlayer, of=f"{STEPS}/Get"):
    """Its own rows."""

    def request(self) -> Any:
        return self.make(steps_pb2.GetStep, player=self.player, keys=[self.key])

    def shown(self, reply: Any) -> None:
        assert [each.key for each in reply.values] == [self.key]


class Scan(OfPlayer, of=f"{STEPS}/Scan", use="of its rows"):
    """All of them."""

    def request(self) -> Any:
        prefix = row_key(self.stage.player, "told", "")
        return self.make(steps_pb2.ScanStep, player=self.player, prefix=prefix)

    def shown(self, reply: Any) -> None:
        assert all(self.player in each.key for each in reply.values)


class ScanAll(OfPlayer, of=f"{STEPS}/Scan", use="of all players"):
    """Everyone's."""

    def request(self) -> Any:
        return self.make(steps_pb2.ScanStep, prefix=row_key("", "", "").partition("/")[0] + "/")

    def shown(self, reply: Any) -> None:
        pass


class ReadStep(OfPlayer, of=f"{STEPS}/Read"):
    """All entries, of whatever stream."""

    def request(self) -> Any:
        after = self.tail - 1
        return self.make(steps_pb2.ReadStep, player=self.player, after=after, limit=1)

    def shown(self, reply: Any) -> None:
        assert b"an order" in reply.rows[0].body


class Ends(OfPlayer, of=f"{STEPS}/Ends"):
    """Where the log begins and ends."""

    def request(self) -> Any:
        return self.make(steps_pb2.EndsStep, player=self.player)

    def shown(self, reply: Any) -> None:
        assert reply.last == self.tail


class Wait(OfPlayer, of=f"{STEPS}/Wait"):
    """The same, later."""

    def request(self) -> Any:
        return self.make(steps_pb2.WaitStep, player=self.player, after=0, timeout_ms=1)

    def shown(self, reply: Any) -> None:
        assert reply.last == self.tail


class Commit(OfPlayer, of=f"{STEPS}/Commit"):
    """Its own rows are written."""

    def request(self) -> Any:
        puts = [steps_pb2.StepPut(key=self.key, value=b"{}")]
        return self.make(steps_pb2.CommitStep, player=self.player, puts=puts)

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert after["keys"] == {**before["keys"], self.key: b"{}"}


class Connect(Case, of=f"{TARGET}/Connect"):
    """Where the target is in a player's streams."""

    def __init__(self, door: Door, role: str) -> None:
        super().__init__(door, role)
        self.feed = target_pb2.Feed(log="shop", number=self.stage.number())

    def request(self) -> Any:
        return target_pb2.ConnectRequest(
            feed=self.feed, incarnation="i1", tags=[TAG], player="mailer"
        )

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert not reply.indexes[0].HasField("at")


class DeliverBatch(Connect, of=f"{TARGET}/DeliverBatch"):
    """The handler is called with a message, and the index is behind it."""

    def request(self) -> Any:
        return target_pb2.Deliveries(
            feed=self.feed, incarnation="i1", term=7, deliveries=[message(1, None)]
        )

    def check(self, reply: Any, before: Any, after: Any) -> None:
        (answer,) = reply.answers
        assert answer.kind == target_pb2.DeliveryAnswer.DONE
        assert answer.place == place(1)
        assert len(after["ran"]) == len(before["ran"]) + 1
        assert after["rows"]["rifl_row"] != before["rows"]["rifl_row"]


class Deliver(DeliverBatch, of=f"{TARGET}/Deliver"):
    """The same on a stream."""

    at = ("calls, aio",)


def _method(name: str) -> Any:
    return pb.DESCRIPTOR.services_by_name["Log"].methods_by_name[name]
