"""Clients that follow no rule: typed errors, nothing lost, nobody else disturbed (L8, issue 17)."""

import asyncio
import itertools
import secrets
import threading
from contextlib import closing

import grpc
import pytest

import sharedlog
from _rifl_ground.pings import OWN_SERVER_OPTIONS
from rifl._grpc.entrance import WAITING
from sharedlog._core.consumer.names import hold_name as consumer_hold
from sharedlog._core.consumer.names import producer_name
from sharedlog._core.holds import BEGINNING, hold_key, take
from sharedlog._core.outbox import NO_CHAIN, Box, Mark
from sharedlog._core.player.deadletters import Whose
from sharedlog._core.player.holding import hold_name as player_hold
from sharedlog._core.verifying import Verifier
from sharedlog._service.followers import Followers
from sharedlog._service.settings import AccessRule, ServerLimits, ServerSettings
from sharedlog._wire.methods import MOST_REQUEST_BYTES
from sharedlog._wire.refusals import error_of
from sharedlog.v1 import log_pb2 as pb
from sharedlog.v1 import log_pb2_grpc, steps_pb2, steps_pb2_grpc
from sharedlog.v1.sharedlog_pb2 import Envelope, Span
from tests.helpers.half_open import half_open
from tests.helpers.waiting import until
from tests.sharedlog.served import served

MOST = (1 << 64) - 1
TOKEN = b"0123456789abcdef"


class Raw:
    """A client that sends whatever it is told."""

    def __init__(self, address, incarnation, token=""):
        self.channel = grpc.insecure_channel(address)
        self.stub = log_pb2_grpc.LogStub(self.channel)
        self.incarnation = incarnation
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def close(self):
        self.channel.close()

    def ask(self, method, **fields):
        """The answer to a request of these fields; of a stream the first one."""
        described = pb.DESCRIPTOR.services_by_name["Log"].methods_by_name[method]
        request = getattr(pb, described.input_type.name)(**fields)
        if method != "Describe":
            request.incarnation = self.incarnation
        try:
            found = getattr(self.stub, method)(request, timeout=20, metadata=self.metadata)
            if described.server_streaming:
                found = next(iter(found), None)
        except grpc.RpcError as error:
            raise error_of(error) from error
        return found

    def granted(self, window=1):
        found = self.ask("Grant", token=TOKEN, window=window)
        return pb.Producer(id=found.id, token=TOKEN, window=window)


async def _waited(future):
    return await future


def message(text="a", tag="s/0", **said):
    body = text if isinstance(text, bytes) else text.encode()
    packed = Envelope(version=1, body=body, **said).SerializeToString()
    return pb.NewMessage(tag=tag, envelope=packed)


@pytest.fixture
def behind():
    """The log behind the server, which is whole when the test is over."""
    with sharedlog.create(f"memory:{secrets.token_hex(8)}") as made:
        made.stream("s", 2)
        yield made
        verifier = Verifier()
        while made._run(verifier.read()):
            pass
        assert made._run(verifier.report()).problems == []
        place = made.publish("s", b"others go on", key="k")
        assert [each.position for each in made.read("s", place.substream)][-1] == place


@pytest.fixture
def raw(behind):
    with served(behind) as server, closing(Raw(server.address, behind.incarnation)) as made:
        yield made


def test_a_forged_or_foreign_producer_appends_nothing(raw, behind):
    """Nor decides what another one has pending, without its token (L3, L8)."""
    mine, other = raw.granted(), raw.granted()
    raw.ask("Append", producer=other, seq=1, messages=[message()], pending=pb.Pending())
    for forged in (
        pb.Producer(id=other.id, token=b"x" * 16, window=1),
        pb.Producer(id=other.id, token=TOKEN, window=2),
        pb.Producer(id=77, token=TOKEN, window=1),
    ):
        with pytest.raises(sharedlog.UnknownProducer):
            raw.ask("Append", producer=forged, seq=1, messages=[message()])
        for commits in (True, False):
            decided = pb.Decided(producer=forged, through=1, spans=[Span(tag="s/0", begin=1)])
            marker = pb.Marker(commits=commits, decided=[decided])
            with pytest.raises(sharedlog.UnknownProducer):
                raw.ask("Append", producer=mine, seq=1, marker=marker)
        with pytest.raises(sharedlog.UnknownProducer):
            raw.ask("GetProducer", producer=forged)
        with pytest.raises(sharedlog.UnknownProducer):
            raw.ask("Retire", producer=forged)
    assert behind._engine.tail() == 1
    assert raw.ask("Retire", producer=other).highest_seq == 1


@pytest.mark.parametrize("opened", ["half-open calls", "watches", "reflection"])
def test_what_strangers_leave_open_takes_no_callers_place(behind, opened, caplog):
    """More than the server has places for calls: all of it beside them (L8, DESIGN §9)."""
    path, message = {
        "half-open calls": ("/sharedlog.v1.Log/Describe", None),
        "watches": ("/grpc.health.v1.Health/Watch", b""),
        "reflection": ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", None),
    }[opened]
    settings = ServerSettings(limits=ServerLimits(followers=1))
    crowd = {"127.0.1.1": [path] * 600} | {f"127.0.1.{i}": [path] for i in range(2, 52)}
    with (
        served(behind, settings=settings) as server,
        closing(Raw(server.address, behind.incarnation)) as raw,
        half_open(server.address, crowd, renews=False, message=message) as strangers,
    ):
        until(lambda: strangers.ended >= 650 - WAITING, "calls that had to make room")
        for _ in range(3):
            assert raw.ask("Describe").incarnation == behind.incarnation
        assert strangers.most_streams == dict(OWN_SERVER_OPTIONS)["grpc.max_concurrent_streams"]
    # Nor is it the server's failure that they leave.
    assert "served_log_failed" not in caplog.text


def test_a_caller_is_judged_before_its_message(behind):
    """Who has no token is told so although its message never comes: nothing is read of it (L8)."""
    over = threading.Event()

    def never():
        over.wait(60)
        yield from ()

    tokens = {"mine": TOKEN}
    with served(behind, tokens=tokens) as server, grpc.insecure_channel(server.address) as to:
        for path in ("/sharedlog.v1.Log/Append", "/sharedlog.v1.Steps/Commit"):
            with pytest.raises(grpc.RpcError) as refused:
                to.stream_unary(path)(never(), timeout=60)
            assert isinstance(error_of(refused.value), sharedlog.NotAllowed)
        call = to.stream_stream("/sharedlog.v1.Log/Follow")(never(), timeout=60)
        with pytest.raises(grpc.RpcError):
            next(call)
        assert isinstance(error_of(call), sharedlog.NotAllowed)
        over.set()


@pytest.mark.parametrize(
    ("path", "field"),
    [
        # Messages of two bytes, in AppendRequest.messages, in a marker, and in no field at all.
        ("/sharedlog.v1.Log/Append", b"\x32\x00"),
        ("/sharedlog.v1.Log/Follow", b"\x2a\x00"),
        ("/sharedlog.v1.Steps/Commit", b"\x22\x00"),
        ("/sharedlog.v1.Log/Describe", b"\xa2\x06\x00"),
    ],
)
def test_a_request_of_too_many_fields_is_not_parsed(raw, path, field):
    """As many as fit in two mebibytes would be a gibibyte of memory: they are counted (L8)."""
    bomb = field * (MOST_REQUEST_BYTES // len(field) - 1)
    call = raw.channel.stream_stream(path)(iter([bomb]), timeout=20)
    with pytest.raises(grpc.RpcError):
        next(call)
    error = error_of(call)
    assert isinstance(error, sharedlog.InvalidRequest)
    assert "more than 50000 fields" in str(error)


def test_an_envelope_of_too_many_fields_is_not_parsed(raw):
    """A message's own, which its publisher packed (L8)."""
    bomb = Envelope(version=1, body=b"a").SerializeToString() + b"\xa2\x06\x00" * 5_000
    with pytest.raises(sharedlog.InvalidRequest):
        raw.ask(
            "Append",
            producer=raw.granted(),
            seq=1,
            messages=[pb.NewMessage(tag="s/0", envelope=bomb)],
        )


def test_a_message_that_does_not_come_is_refused_by_name(behind):
    """After ``message_s``, as a quota is (L8)."""
    settings = ServerSettings(limits=ServerLimits(message_s=0.1))
    over = threading.Event()

    def never():
        over.wait(60)
        yield from ()

    with served(behind, settings=settings) as server, grpc.insecure_channel(server.address) as to:
        with pytest.raises(grpc.RpcError) as refused:
            to.stream_unary("/sharedlog.v1.Log/Append")(never(), timeout=60)
        over.set()
    error = error_of(refused.value)
    assert isinstance(error, sharedlog.QuotaExceeded)
    assert error.appended is False


def test_seqs_are_held_to_the_rule(raw, behind):
    """Far ahead, repeated, repeated with other content, beyond all numbers (L3)."""
    mine = raw.granted()
    first = raw.ask("Append", producer=mine, seq=1, messages=[message()])
    again = raw.ask("Append", producer=mine, seq=1, messages=[message()])
    assert (again.lsn, again.first, again.checksum) == (first.lsn, 0, first.checksum)
    with pytest.raises(sharedlog.SeqReused) as reused:
        raw.ask("Append", producer=mine, seq=1, messages=[message("b")])
    assert reused.value.appended is False
    with pytest.raises(sharedlog.OutOfOrder) as ahead:
        raw.ask("Append", producer=mine, seq=1000, messages=[message()])
    assert ahead.value.expected == 2
    for seq in (0, MOST):
        with pytest.raises(sharedlog.InvalidRequest):
            raw.ask("Append", producer=mine, seq=seq, messages=[message()])
    assert behind._engine.tail() == 1


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [pb.NewMessage(tag="s/0", envelope=b"\xff\xff")],
        [pb.NewMessage(tag="s/0")],
        [message(key=b"k" * 1025)],
        [message(headers=[{"name": f"{n}", "value": b""} for n in range(65)])],
        [message(headers=[{"name": "n", "value": b"x" * (17 << 10)}])],
        [message(headers=[{"name": "n"}, {"name": "n"}])],
        [message(headers=[{"name": "a b"}])],
        [message(trace_parent="none")],
        [message(schema_name="x" * 513)],
        [pb.NewMessage(tag="s/0", envelope=b"\x08\x03")],
        [pb.NewMessage(tag="s/0", envelope=Envelope(version=2, body=b"b").SerializeToString())],
        [message(b"x" * (1 << 20))],
        [message(b"x" * 600_000), message(b"x" * 600_000)],
        [message()] * 1001,
        *([message(tag=tag)] for tag in ("s/2", "s/*", "s/00", "s/-1", "s/", "s", "", "*markers")),
        [message(tag="s/9999999999999999999999")],
        [message(key=b"k", tag=f"s/{number}") for number in (0, 1)],
    ],
)
def test_what_no_reader_could_read_is_not_appended(raw, behind, messages):
    """Nor what is too large, too much, or in the wrong place (DESIGN-LOG §12)."""
    mine = raw.granted()
    with pytest.raises(sharedlog.InvalidRequest) as caught:
        raw.ask("Append", producer=mine, seq=1, messages=messages)
    assert caught.value.appended is False
    assert behind._engine.tail() == 0


def test_a_request_beyond_all_bounds_is_refused_before_it_is_read(raw, behind):
    """By gRPC (L8)."""
    with pytest.raises(sharedlog.LogUnavailable, match="RESOURCE_EXHAUSTED"):
        raw.ask("Append", producer=raw.granted(), seq=1, messages=[message(b"x" * (3 << 20))])
    assert behind._engine.tail() == 0


def test_ten_thousand_tags_are_refused(raw, behind):
    """Of messages, of what is said to be pending, and of a marker, which could not be (C1)."""
    mine = raw.granted()
    tags = [f"s/{n}" for n in range(10_000)]
    spans = [Span(tag=tag, begin=1) for tag in tags]
    marker = pb.Marker(commits=True, decided=[pb.Decided(producer=mine, through=0, spans=spans)])
    for fields in (
        {"messages": [message(tag=tag) for tag in tags]},
        {"messages": [message()], "pending": pb.Pending(opened=tags)},
        {"marker": marker},
    ):
        with pytest.raises(sharedlog.InvalidRequest):
            raw.ask("Append", producer=mine, seq=1, **fields)
    assert behind._engine.tail() == 0


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("Grant", {"token": b"short", "window": 1}),
        ("Grant", {"token": TOKEN, "window": 0}),
        ("Grant", {"token": TOKEN, "window": (1 << 32) - 1}),
        ("GetProducer", {}),
        ("GetProducer", {"producer": pb.Producer(id=MOST, token=TOKEN, window=1)}),
        ("Retire", {"producer": pb.Producer(id=MOST)}),
        ("Append", {"messages": [message()]}),
        ("Append", {"messages": [message()], "seq": 1, "producer": pb.Producer(window=1 << 31)}),
        ("Append", {"messages": [message()], "named": pb.Named(name="n", seq=1, content=b"x")}),
        ("Append", {"messages": [message()], "named": pb.Named(name="", seq=1)}),
        ("Append", {"messages": [message()], "named": pb.Named(name="n", seq=MOST)}),
        ("Append", {"messages": [message()], "fence": pb.Fence(name="f", number=MOST)}),
        ("Append", {"marker": pb.Marker()}),
        ("GetNamed", {"name": "/"}),
        ("GetNamed", {"name": "n", "seq": 1, "lsn": MOST}),
        ("ForgetNamed", {"name": "/"}),
        ("RaiseFence", {"name": "*trimmer"}),
        ("RaiseFence", {"name": "f", "at_least": MOST}),
        ("MakeStream", {"name": "a/b"}),
        ("MakeStream", {"name": "a" * 5000, "find": True}),
        ("MakeStream", {"name": "n", "substreams": (1 << 32) - 1}),
        ("MakeStream", {"name": "n", "retention_us": (1 << 63) - 1}),
        ("Read", {"stream": "s", "substream": 2, "limit": 1}),
        ("Read", {"stream": "s", "limit": 0}),
        ("Read", {"stream": "s", "limit": (1 << 32) - 1}),
        ("Read", {"stream": "s", "limit": 1, "start": pb.Start(lsn=MOST)}),
        ("Read", {"stream": "s", "limit": 1, "start": pb.Start(after=pb.Place(lsn=MOST))}),
        ("Follow", {"stream": "s", "substreams": [7]}),
        ("Follow", {"stream": "s", "through": MOST}),
        ("Follow", {"stream": "s", "name": "a/b"}),
        ("Follow", {"stream": "s", "name": "n", "uncommitted": True}),
        ("Follow", {"stream": "s", "start": pb.Start(after=pb.Place(lsn=1, substream=9))}),
        ("Follow", {"stream": "s", "starts": [pb.SubstreamStart(substream=1 << 31)]}),
        ("MoveHold", {"stream": "s", "name": "*"}),
        ("MoveHold", {"stream": "s", "name": "n", "done": [pb.Done(substream=5)]}),
        ("ListHolds", {"name": "/"}),
        ("EndHolds", {"name": ""}),
        ("Trim", {"retention_us": 1}),
        ("Trim", {"retention_us": -(1 << 63)}),
    ],
)
def test_what_cannot_be_is_refused_as_such(raw, method, fields):
    """Numbers without bounds, names that are none (DESIGN-LOG §12)."""
    with pytest.raises(sharedlog.InvalidRequest):
        raw.ask(method, **fields)


def test_a_hold_is_moved_to_places_of_this_log_only(raw, behind):
    """Not behind its end, nor to what was never there (L6)."""
    behind.publish("s", b"a")
    raw.ask("Follow", stream="s", name="n")
    move = {"stream": "s", "name": "n"}
    with pytest.raises(sharedlog.InvalidRequest):
        raw.ask("MoveHold", **move, done=[pb.Done(idle_through=1 << 60)])
    for place in (pb.Place(lsn=1, checksum=7), pb.Place(lsn=1 << 60)):
        with pytest.raises(sharedlog.LogForked):
            raw.ask("MoveHold", **move, done=[pb.Done(through=place)])
    with pytest.raises(sharedlog.TrimmedLog):
        raw.ask("MoveHold", stream="s", name="nobody", done=[pb.Done()])
    assert {each.lsn for each in behind.holds()} == {1}


def test_a_request_for_another_log_is_refused(raw):
    """By its incarnation (DESIGN-LOG §12)."""
    raw.incarnation = "0" * 16
    for method in ("Append", "Grant", "ListStreams", "Follow", "Read", "Trim"):
        with pytest.raises(sharedlog.LogForked):
            raw.ask(method)


RIGHTS = ServerSettings(
    allow=(
        AccessRule("", "shop", publish=("s",), names=("shop-*",)),
        AccessRule("", "mail", follow=("s",), names=("mail",)),
        AccessRule("", "boss", admin=True),
    )
)
TOKENS = {name: f"{name}-{name}-{name}-{name}".encode() for name in ("shop", "mail", "boss")}


def test_who_has_no_right_does_nothing(behind):
    """By stream and by name; without a token nothing at all (L8)."""
    behind.stream("t", 1)
    append = {"producer": pb.Producer(id=1, token=TOKEN, window=1), "seq": 1}
    refused = {
        "shop": (
            ("Append", append | {"messages": [message(tag="t/0")]}),
            ("Append", append | {"messages": [message()], "pending": pb.Pending(opened=["t/0"])}),
            ("Append", {"messages": [message()], "named": pb.Named(name="mail", seq=1)}),
            ("Append", append | {"messages": [message()], "fence": pb.Fence(name="mail")}),
            ("Read", {"stream": "s", "limit": 1}),
            ("Follow", {"stream": "s"}),
            ("RaiseFence", {"name": "mail"}),
        ),
        "mail": (
            ("Grant", {"token": TOKEN, "window": 1}),
            ("Append", append | {"messages": [message()]}),
            ("Follow", {"stream": "t"}),
            ("Follow", {"stream": "s", "name": "shop-1"}),
            ("MoveHold", {"stream": "s", "name": "shop-1"}),
            ("ListHolds", {}),
            ("GetNamed", {"name": "shop-1"}),
        ),
    }
    admins = (
        ("MakeStream", {"name": "u"}),
        ("ListProducers", {}),
        ("Retire", {"producer": pb.Producer(id=1)}),
        ("ForgetNamed", {"name": "shop-1"}),
        ("EndHolds", {"name": "mail"}),
        ("Trim", {}),
    )
    with served(behind, settings=RIGHTS, tokens=TOKENS) as server:
        for who, calls in refused.items():
            with closing(Raw(server.address, behind.incarnation, TOKENS[who].decode())) as raw:
                for method, fields in (*calls, *admins):
                    with pytest.raises(sharedlog.NotAllowed):
                        raw.ask(method, **fields)
                assert [each.name for each in raw.ask("ListStreams").streams] == ["s"]
                with pytest.raises(sharedlog.NoSuchStream):
                    raw.ask("MakeStream", name="t", find=True)
        for shown in ((), "Bearer wrong", "Bearer ", "Basic eA==", TOKENS["shop"].decode()):
            with closing(Raw(server.address, behind.incarnation)) as raw:
                raw.metadata = (("authorization", shown),) if shown else ()
                for method in ("Describe", "Grant", "Follow"):
                    with pytest.raises(sharedlog.NotAllowed):
                        raw.ask(method)
        with closing(Raw(server.address, behind.incarnation, TOKENS["shop"].decode())) as raw:
            mine = raw.granted()
            assert raw.ask("Append", producer=mine, seq=1, messages=[message()]).lsn == 1
            assert raw.ask("RaiseFence", name="shop-1").number == 1
            once = pb.Named(name="shop-1", seq=7, content=TOKEN)
            raw.ask("Append", named=once, messages=[message()])
        with closing(Raw(server.address, behind.incarnation, TOKENS["mail"].decode())) as raw:
            assert raw.ask("Follow", stream="s", name="mail").begun.holds
        with closing(Raw(server.address, behind.incarnation, TOKENS["boss"].decode())) as raw:
            assert raw.ask("Retire", producer=pb.Producer(id=mine.id)).highest_seq == 1
            assert [raw.ask("ForgetNamed", name="shop-1").highest_seq for _ in range(2)] == [7, 0]


def step_that_removes(player, hold):
    """A player's step, as bytes of its own making."""
    put = steps_pb2.StepPut(key=hold_key(hold, "s/0"))
    return steps_pb2.CommitStep(player=player, puts=[put])


CONSUMER, PLAYER = consumer_hold("billing"), player_hold("shop", "mail", 0)
OUTPUTS = producer_name("billing", "s/0")
LETTERS = Whose("shop", "mail", "store", "log", 0).producer("s/0")
OUTBOX = Box("shop", "id", "", Mark(0, NO_CHAIN), Mark(0, NO_CHAIN)).producer
# Who has these rights, and what it may do under which of the log's own names; nothing else.
OWNERS = {
    "names": (AccessRule("", "names", publish=("*",), follow=("*",), names=("*",)), ()),
    "shop*": (AccessRule("", "shop*", publish=("*",), follow=("*",), names=("shop*",)), ()),
    "play": (AccessRule("", "play", publish=("*",), follow=("*",), play=("consumer", "b*")), ()),
    "mine": (AccessRule("", "mine", follow=("*",), play=("shop",)), (PLAYER,)),
    "consume": (
        AccessRule("", "consume", publish=("*",), follow=("*",), consume=("bill*",)),
        (CONSUMER, OUTPUTS),
    ),
    "others": (AccessRule("", "others", publish=("*",), follow=("*",), consume=("shop",)), ()),
}


@pytest.mark.parametrize("who", OWNERS)
def test_names_of_one_kind_are_not_reached_by_the_rights_to_another(behind, who):
    """Holds and producers of consumers, players, outboxes; dead letters by no name at all (L8)."""
    rule, own = OWNERS[who]
    settings = ServerSettings(allow=(rule,))
    for name in (CONSUMER, PLAYER):
        behind._run(take(name, {"s/0": BEGINNING, "s/1": BEGINNING}, behind.incarnation, 1, 1))
    before = behind.holds(), behind._engine.scan("named/")
    with (
        served(behind, settings=settings, tokens={who: TOKEN}) as server,
        closing(Raw(server.address, behind.incarnation, TOKEN.decode())) as raw,
    ):

        def allowed(method, **fields):
            try:
                raw.ask(method, **fields)
            except sharedlog.NotAllowed:
                return False
            return True

        for name in (CONSUMER, PLAYER):
            places = [pb.Done(idle_through=1)]
            for method, fields in (
                ("Follow", {"stream": "s", "name": name}),
                ("MoveHold", {"stream": "s", "name": name, "done": places}),
                ("ListHolds", {"name": name}),
            ):
                assert allowed(method, **fields) is (name in own), (method, name)
            assert not allowed("EndHolds", name=name, forget=True)
            steps = steps_pb2_grpc.StepsStub(raw.channel)
            for player in ("consumer", "b", "shop"):
                step = step_that_removes(player, name)
                step.incarnation = behind.incarnation
                if (player, name) == ("shop", PLAYER):
                    continue
                with pytest.raises(grpc.RpcError) as refused:
                    steps.Commit(step, timeout=20, metadata=raw.metadata)
                assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert [each[:4] for each in behind.holds()] == [each[:4] for each in before[0]]
        for name in (OUTPUTS, LETTERS, OUTBOX):
            named = pb.Named(name=name, seq=1, content=TOKEN)
            assert allowed("GetNamed", name=name) is (name in own), name
            assert allowed("Append", named=named, messages=[message()]) is (name in own), name
        assert set(behind._engine.scan("named/")) == {f"named/{each}" for each in own} - {
            f"named/{CONSUMER}",
            f"named/{PLAYER}",
        }


def test_no_users_name_is_one_of_the_logs_own(raw, behind):
    """Nor are the parts of one read otherwise: where a name ends is not guessed (L8)."""
    own = {CONSUMER, PLAYER, OUTPUTS, LETTERS, OUTBOX}
    for name in own:
        with pytest.raises(sharedlog.InvalidRequest):
            behind.follow("s", name=name)
        with pytest.raises(sharedlog.InvalidRequest):
            behind.producer(name)
        with pytest.raises(sharedlog.InvalidRequest):
            behind.raise_fence(name)
        with pytest.raises(sharedlog.InvalidRequest):
            raw.ask("RaiseFence", name=name)
    # What holds and producers were named by before kinds.
    for name in ("consumer.billing", "shop.mail.0", "spark.q"):
        with behind.follow("s", name=name) as follower:
            follower.poll()
        assert {each.name for each in behind.holds()} == {name}
        behind.forget_hold(name)
    for name in ("@consumer:a:b", "@consumer:", "@consumer:a/b", "@player:a:b", "@other:a", "@a"):
        with pytest.raises(sharedlog.InvalidRequest):
            behind.holds(name)
        with pytest.raises(sharedlog.InvalidRequest):
            raw.ask("ListHolds", name=name)
        with pytest.raises(sharedlog.InvalidRequest):
            raw.ask("Follow", stream="s", name=name)
    for name in ("@consumer:", "@query:a", "@player:a:b:0", "@transactions", "@consumer:a b"):
        with pytest.raises(sharedlog.InvalidRequest):
            raw.ask("GetNamed", name=name)


def test_a_follower_that_goes_on_makes_no_hold_that_was_removed(behind):
    """It is told, as of one that was dropped, also where its connection broke meanwhile (L6)."""
    behind.publish("s", b"a", key="k")
    with (
        served(behind) as server,
        sharedlog.open(f"grpc://{server.address}") as log,
        log.follow("s", name="n") as follower,
    ):
        assert next(follower).value == b"a"
        server.stop()
        behind.forget_hold("n")
        server.start()
        with pytest.raises(sharedlog.TrimmedLog, match="was dropped"):
            next(follower)
        assert behind.holds() == []


def test_followers_beyond_the_bound_are_refused_and_those_that_left_make_room(behind):
    """Each stream that nobody reads costs one place, and no more than its window (L8)."""
    for number in range(200):
        behind.publish("s", bytes(50_000), key=f"{number}")
    limits = ServerLimits(caller_followers=20, caller_steps_per_s=0)
    with (
        served(behind, settings=ServerSettings(limits)) as server,
        closing(Raw(server.address, behind.incarnation)) as raw,
    ):
        follow = pb.FollowRequest(incarnation=behind.incarnation, stream="s")
        unread = [raw.stub.Follow(follow) for _ in range(20)]
        for each in unread:
            assert next(each).HasField("begun")
        with pytest.raises(sharedlog.QuotaExceeded):
            raw.ask("Follow", stream="s")
        assert len(raw.ask("Read", stream="s", limit=10).messages) > 0
        producer = raw.granted()
        assert raw.ask("Append", producer=producer, seq=1, messages=[message()]).lsn == 201
        for each in unread[:5]:
            each.cancel()

        def follows():
            try:
                return raw.ask("Follow", stream="s").HasField("begun")
            except sharedlog.QuotaExceeded:
                return False

        until(follows, "a place of a follower that left")
        for each in unread[5:]:
            each.cancel()


def test_a_follower_that_leaves_while_it_is_written_to_is_no_mistake_of_the_server(behind, caplog):
    """Operators are told of mistakes alone (L8)."""
    behind.publish("s", b"first", key="k")
    for _ in range(20):
        behind.publish("s", bytes(100_000), key="k")
    follow = pb.FollowRequest(incarnation=behind.incarnation, stream="s")
    with served(behind) as server:
        raw = Raw(server.address, behind.incarnation)
        unread = [raw.stub.Follow(follow) for _ in range(20)]
        for each in unread:
            assert next(each).HasField("begun")
        raw.close()
        until(lambda: not server.server._quotas._followers.total(), "the followers to be gone")
    assert [each for each in caplog.records if "served_log_failed" in each.getMessage()] == []


@pytest.mark.parametrize("ticks", range(6))
def test_a_follower_that_leaves_in_the_moment_in_which_a_reply_is_written_is_gone(ticks):
    """Its place among the followers is not kept by nobody (L8)."""

    async def leave() -> tuple[bool, bool]:
        written = asyncio.get_running_loop().create_future()
        followers = Followers(*[None] * 4, ServerLimits(), None, None)
        writing = asyncio.create_task(followers._write(lambda _: _waited(written), None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        written.set_result(None)
        for _ in range(ticks):
            await asyncio.sleep(0)
        asked = writing.cancel()
        await asyncio.wait((writing,))
        return asked, writing.cancelled()

    asked, cancelled = asyncio.run(leave())
    assert cancelled is asked


def test_a_follower_that_reads_nothing_is_ended_and_goes_on_where_it_was(behind):
    """It gives its place back after a time; whoever opened the log notices nothing (L8, C4)."""
    limits = ServerLimits(followers=1, stalled_s=0.2)
    with (
        served(behind, settings=ServerSettings(limits)) as server,
        sharedlog.open(f"grpc://{server.address}") as log,
        log.follow("s") as slow,
    ):
        for number in range(400):
            behind.publish("s", bytes(50_000), key="k", headers={"n": f"{number}"})
        # The one place there is.
        until(lambda: not server.server._quotas._followers.total(), "the follower to be ended")
        assert [int(each.headers["n"]) for each in itertools.islice(slow, 400)] == list(range(400))


def test_who_publishes_more_than_its_quota_waits_and_others_do_not(behind):
    """By stream of a caller, and by producer; a handle sends again until its time is over (L8)."""
    limits = ServerLimits(stream_bytes_per_s=1000, producer_bytes_per_s=10_000)
    behind.stream("t", 1)
    with (
        served(behind, settings=ServerSettings(limits)) as server,
        closing(Raw(server.address, behind.incarnation)) as raw,
    ):
        mine, other = raw.granted(), raw.granted()
        raw.ask("Append", producer=mine, seq=1, messages=[message("x" * 5000)])
        with pytest.raises(sharedlog.QuotaExceeded) as caught:
            raw.ask("Append", producer=mine, seq=2, messages=[message("x" * 1000)])
        assert caught.value.appended is False
        raw.ask("Append", producer=other, seq=1, messages=[message("y" * 100, tag="t/0")])
        with pytest.raises(sharedlog.QuotaExceeded):
            raw.ask("Append", producer=other, seq=2, messages=[message("x" * 1000)])
    assert behind._engine.tail() == 2


def test_reading_more_than_one_reply_may_have_comes_in_pieces(raw, behind):
    """Of any size: a commit is never cut, and no reply is beyond its bound (C4)."""
    with behind.producer().transaction() as transaction:
        for _ in range(12):
            transaction.publish("s", bytes(900_000), key="k")
    replies = list(
        raw.stub.Read(
            pb.ReadRequest(
                incarnation=behind.incarnation,
                stream="s",
                substream=transaction.positions[0].substream,
                limit=1,
            )
        )
    )
    assert sum(len(each.messages) for each in replies) == 12
    assert max(each.ByteSize() for each in replies) < 2 << 20


def test_calls_beyond_the_bound_are_refused_and_others_are_answered(behind):
    """Reads that nobody takes, too; by caller, so that nobody waits for somebody else's (L8)."""
    for _ in range(100):
        behind.publish("s", bytes(100_000), key="k")
    limits = ServerLimits(caller_unanswered=3)
    rights = ServerSettings(
        limits, (AccessRule("", "shop", follow=("s",)), AccessRule("", "mail", follow=("s",)))
    )
    substream = behind.follow("s").poll()[0].substream
    with (
        served(behind, settings=rights, tokens=TOKENS) as server,
        closing(Raw(server.address, behind.incarnation, TOKENS["shop"].decode())) as greedy,
        closing(Raw(server.address, behind.incarnation, TOKENS["mail"].decode())) as other,
    ):
        read = pb.ReadRequest(
            incarnation=behind.incarnation, stream="s", substream=substream, limit=100
        )
        unread = [greedy.stub.Read(read, metadata=greedy.metadata) for _ in range(3)]
        for each in unread:
            next(each)
        for method, fields in (("ListStreams", {}), ("Read", {"stream": "s", "limit": 1})):
            with pytest.raises(sharedlog.QuotaExceeded):
                greedy.ask(method, **fields)
        assert other.ask("Read", stream="s", substream=substream, limit=1).messages
        assert all(len(list(each)) for each in unread)
        assert greedy.ask("ListStreams").streams
