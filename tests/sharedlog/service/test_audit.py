"""A served log tells who was not let in, and what operators and players did (§12, L8)."""

import time

import grpc
import pytest
import structlog
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry, generate_latest

import sharedlog
from sharedlog._cli import main
from sharedlog._core.catalog import STREAMS
from sharedlog._core.holds import BEGINNING, hold_key, take
from sharedlog._core.player.holding import hold_name
from sharedlog._core.player.rows import Latest, Order, Wish, _wish_written, row_key
from sharedlog._service.settings import AccessRule, ServerSettings
from sharedlog.metrics import PrometheusLogObserver
from sharedlog.v1 import log_pb2 as pb
from sharedlog.v1 import steps_pb2 as steps
from sharedlog.v1.log_pb2_grpc import LogStub
from sharedlog.v1.steps_pb2_grpc import StepsStub
from tests.sharedlog.served import served

TOKENS = {"ops": b"the operators' token", "shop": b"the player's own token"}
RULES = (AccessRule(token="ops", admin=True), AccessRule(token="shop", play=("shop",)))  # noqa: S106
ADDRESS = "127.0.0.1"


class Doors:
    """A served log, what is counted and told of it, and callers with any token."""

    def __init__(self, channel, log, registry, told):
        self.log, self.registry, self._told = log, registry, told
        self._log, self._steps = LogStub(channel), StepsStub(channel)
        self.reflection = reflection_pb2_grpc.ServerReflectionStub(channel)

    def ask(self, token, method, request):
        """Return the answer to a caller; token: the name of one, or any text."""
        request.incarnation = self.log.incarnation
        shown = TOKENS.get(token, (token or "").encode()).decode()
        metadata = (("authorization", f"Bearer {shown}"),) if token else ()
        stub = getattr(self._log, method, None) or getattr(self._steps, method)
        return stub(request, timeout=30, metadata=metadata)

    def refused(self, token, method, request):
        """Ask, and be refused."""
        with pytest.raises(grpc.RpcError) as error:
            self.ask(token, method, request)
        assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED

    def counted(self, kind, reason):
        """Return how many were counted."""
        labels = {"log": self.log._place.name, "kind": kind, "reason": reason}
        name = "sharedlog_callers_refused_total"
        return self.registry.get_sample_value(name, labels) or 0

    def callers(self):
        """Return what was told of refused callers since the last time."""
        names = ("kind", "reason", "address", "times")
        return self._of("caller_refused", names)

    def acts(self):
        """Return what was told of acts since the last time."""
        return self._of("operator_acted", ("caller", "verb", "object", "outcome"))

    def _of(self, event, names):
        found = [
            tuple(each[name] for name in names) for each in self._told if each["event"] == event
        ]
        self._told[:] = [each for each in self._told if each["event"] != event]
        return found


@pytest.fixture
def doors():
    """A log with operators and one player."""
    registry = CollectorRegistry()
    observer = PrometheusLogObserver(registry)
    settings = ServerSettings(allow=RULES)
    with (
        sharedlog.create("memory:", observer=observer) as log,
        served(log, settings=settings, tokens=TOKENS, reflection=True) as server,
        grpc.insecure_channel(server.address) as channel,
        structlog.testing.capture_logs() as told,
    ):
        log.stream("s", 1)
        yield Doors(channel, log, registry, told)


def test_tokens_and_rights_that_are_missing_are_counted_and_told(doors):
    """Each with the address, which is no label (DESIGN §9)."""
    for _ in range(100):
        doors.refused("a guess", "ListStreams", pb.ListStreamsRequest())
    assert doors.counted("log_token", "wrong") == 100
    assert doors.callers() == [("log_token", "wrong", ADDRESS, times) for times in (1, 10, 100)]
    doors.refused(None, "ListStreams", pb.ListStreamsRequest())
    doors.refused("shop", "Grant", pb.GrantRequest(token=bytes(16), window=1))
    doors.refused("shop", "ListProducers", pb.ListProducersRequest())
    doors.refused("shop", "Get", steps.GetStep(player="other"))
    doors.refused("shop", "Get", steps.GetStep(player="shop", keys=["producer/1"]))
    assert doors.callers() == [
        (kind, reason, ADDRESS, 1)
        for kind, reason in (
            ("log_token", "missing"),
            ("right", "publish"),
            ("right", "admin"),
            ("right", "play"),
        )
    ]
    assert doors.counted("right", "play") == 2
    # Reflection and streams, too.
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with pytest.raises(grpc.RpcError):
        list(doors.reflection.ServerReflectionInfo(iter([request]), timeout=30))
    assert doors.counted("log_token", "missing") == 2
    with pytest.raises(grpc.RpcError):
        list(doors.ask("shop", "Follow", pb.FollowRequest(stream="s")))
    assert doors.callers() == [("right", "follow", ADDRESS, 1)]
    # What is refused for another reason is none of it.
    with pytest.raises(grpc.RpcError):
        doors.ask("ops", "Retire", pb.RetireRequest())
    doors.ask("ops", "ListStreams", pb.ListStreamsRequest())
    assert doors.callers() == []
    assert ADDRESS.encode() not in generate_latest(doors.registry)


def test_what_operators_do_is_told_with_their_name(doors):
    """Who, what, to what, and how it ended; what reads is not told (DESIGN §9)."""
    doors.log._run(take("me", {"s/0": BEGINNING}, doors.log.incarnation, 1, 1))
    with doors.log.producer("relay").transaction(seq=1, follows=0) as transaction:
        transaction.publish("s", "a")
    doors.acts()
    doors.ask("ops", "MakeStream", pb.MakeStreamRequest(name="t", substreams=1))
    doors.ask("ops", "MakeStream", pb.MakeStreamRequest(name="t", find=True))
    doors.ask("ops", "ListHolds", pb.ListHoldsRequest())
    doors.ask("ops", "EndHolds", pb.EndHoldsRequest(name="me"))
    doors.ask("ops", "EndHolds", pb.EndHoldsRequest(name="me", forget=True))
    doors.ask("ops", "ForgetNamed", pb.ForgetNamedRequest(name="relay"))
    doors.ask("ops", "Trim", pb.TrimRequest())
    with pytest.raises(grpc.RpcError):
        doors.ask("ops", "Retire", pb.RetireRequest(producer=pb.Producer(id=99)))
    assert doors.acts() == [
        ("ops", "make_stream", "t", "done"),
        ("ops", "drop_hold", "me", "done"),
        ("ops", "forget_hold", "me", "done"),
        ("ops", "forget_producer", "relay", "done"),
        ("ops", "trim", "log", "done"),
        ("ops", "retire_producer", "99", "failed"),
    ]


def test_an_act_that_is_refused_is_told_and_seldom(doors):
    """By the name of the caller's token (DESIGN §9)."""
    for _ in range(12):
        doors.refused("shop", "Trim", pb.TrimRequest())
    doors.refused("shop", "EndHolds", pb.EndHoldsRequest(name="me"))
    assert doors.acts() == [
        ("shop", "trim", "log", "refused"),
        ("shop", "trim", "log", "refused"),
        ("shop", "drop_hold", "me", "refused"),
    ]


def test_what_a_player_removes_and_is_ordered_is_told(doors):
    """What a player removes is told: holds and rows, not its sign of life (DESIGN §9)."""
    hold, told = hold_name("shop", "mail", 0), row_key("shop", "told", "mail")
    wish = row_key("shop", "wish", "mail")
    doors.log._run(take(hold, {"s/0": BEGINNING}, doors.log.incarnation, 1, 1))
    doors.acts()

    def commit(*puts, conditions=(), player="shop"):
        request = steps.CommitStep(player=player, puts=puts, conditions=conditions)
        return doors.ask("shop", "Commit", request)

    key = hold_key(hold, "s/0")
    # A condition that does not hold: nothing was done.
    refused = commit(steps.StepPut(key=key), conditions=[steps.StepValue(key=told, value=b"there")])
    assert refused.refused
    assert doors.log.holds(hold)
    assert doors.acts() == []
    commit(steps.StepPut(key=key), steps.StepPut(key=told))
    assert not doors.log.holds(hold)
    commit(steps.StepPut(key="duty/player/shop"))
    order = Order("ann", "it is late", time.time_ns() // 1000)
    written = _wish_written(Wish(paused=order, latest=Latest("pause", order)))
    commit(steps.StepPut(key=wish, value=written))
    commit(steps.StepPut(key=wish, value=b"what is this?"))
    with pytest.raises(grpc.RpcError):
        commit(steps.StepPut(key=hold_key("me", "s/0")))
    made = STREAMS + "letters"
    with pytest.raises(grpc.RpcError):
        commit(steps.StepPut(key=made, value=b"x"), conditions=[steps.StepValue(key=made)])
    commit(*(steps.StepPut(key=row_key("shop", "told", f"t{each}")) for each in range(12)))
    *acts, many = doors.acts()
    assert acts == [
        ("shop", "remove", f"{key}, {told}", "done"),
        ("shop", "pause", wish, "done"),
        ("shop", "order", wish, "done"),
        ("shop", "remove", hold_key("me", "s/0"), "refused"),
        ("shop", "make_stream", "letters", "refused"),
    ]
    assert many[2].endswith(f"{row_key('shop', 'told', 't9')} and 2 more")


def test_a_command_tells_what_it_did_to_a_log_of_its_own(tmp_path, capsys):
    """What a served log's server tells is not told twice (DESIGN §9)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with sharedlog.create(url) as log:
        log.stream("s", 1)
        log._run(take("me", {"s/0": BEGINNING}, log.incarnation, 1, 1))
        with structlog.testing.capture_logs() as told:
            assert main(["holds", url]) == 0
            assert main(["holds", url, "--drop", "me"]) == 2
            assert main(["holds", url, "--drop", "me", "--yes"]) == 0
            assert main(["retire", url, "99", "--yes"]) == 4
            with served(log) as server:
                main(["trim", f"grpc://{server.address}"])
    acts = [each for each in told if each["event"] == "operator_acted"]
    assert [(each["verb"], each["object"], each["outcome"]) for each in acts] == [
        ("drop_hold", "me", "done"),
        ("trim", "log", "done"),
    ]
    assert acts[1]["caller"] == ADDRESS
    capsys.readouterr()
