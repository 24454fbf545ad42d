"""A trace of a message: publisher, player, handler; and what is counted of it (DESIGN-LOG §15)."""

from contextlib import ExitStack

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import rifl
import sharedlog
from rifl.tracing import caller_context
from sharedlog._player.under_way import UnderWay
from sharedlog._player.watching import PlayerWatchers
from sharedlog.metrics import PrometheusPlayerObserver
from sharedlog.tracing import TracingLogObserver, TracingPlayerObserver
from sharedlog.v1.target_pb2 import DeliveryAnswer
from tests.helpers.servers import KINDS, generic, serve
from tests.sharedlog.player.conftest import House, declared
from tests.sharedlog.player.fake_target import answer
from tests.sharedlog.player.test_player import publish

METHOD = "/shop.v1.Inventory/Reserve"
SHOWN = "a secret of the player's"


@pytest.fixture
def spans(monkeypatch):
    """What the SDK exports of the spans that are made from now on."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def named(spans, name):
    return [each for each in spans.get_finished_spans() if each.name == name]


@pytest.fixture(params=KINDS)
def traced(request, tmp_path):
    """A log whose publishers are traced, and a target whose handler makes a span."""

    def reserve(data, context):
        with trace.get_tracer("shop").start_as_current_span(
            "Reserve", context=caller_context(context)
        ):
            return b""

    async def reserve_async(data, context):
        return reserve(data, context)

    with ExitStack() as stack:
        dedup = stack.enter_context(rifl.Deduplicator("memory:", methods={METHOD: "idempotent"}))
        handler = reserve_async if request.param == "aio" else reserve
        address = stack.enter_context(
            serve(
                request.param,
                [generic("shop.v1.Inventory", {"Reserve": handler})],
                dedup=dedup,
                add=lambda server: sharedlog.add_target_to_server(
                    server, dedup, {"orders": [METHOD]}, token=SHOWN
                ),
            )
        ).address
        url = f"sqlite:///{tmp_path / 'traced.db'}"
        log = stack.enter_context(sharedlog.create(url, observer=TracingLogObserver()))
        log.stream("orders", 2)
        shop = sharedlog.Target(name="shop", address=address, streams=["orders"], token=SHOWN)
        yield House(log, stack), log, shop


def test_publisher_player_and_handler_are_one_trace(traced, spans):
    """The delivery's span is the publisher's child, linked to it, and the handler's parent."""
    house, log, shop = traced
    house.player(shop, observer=TracingPlayerObserver())
    position = log.publish_call("orders", METHOD, b"1", key="1")
    house.wait_for(lambda: named(spans, "deliver orders"))
    ((published,), (delivered,), (handled,)) = (
        named(spans, name) for name in ("publish orders", "deliver orders", "Reserve")
    )
    assert delivered.parent.span_id == published.context.span_id
    assert [each.context.span_id for each in delivered.links] == [published.context.span_id]
    assert handled.parent.span_id == delivered.context.span_id
    assert len({each.context.trace_id for each in (published, delivered, handled)}) == 1
    assert delivered.kind is trace.SpanKind.CONSUMER
    assert delivered.attributes["messaging.message.id"] == str(position)
    assert delivered.attributes["sharedlog.target"] == "shop"
    assert delivered.status.status_code is trace.StatusCode.UNSET
    assert published.start_time <= delivered.start_time <= handled.start_time


def test_without_a_player_that_traces_the_handler_is_the_publishers_child(traced, spans):
    """As before: its context travels in the message."""
    house, log, shop = traced
    house.player(shop)
    log.publish_call("orders", METHOD, b"1", key="1")
    house.wait_for(lambda: named(spans, "Reserve"))
    ((published,), (handled,)) = (named(spans, name) for name in ("publish orders", "Reserve"))
    assert handled.parent.span_id == published.context.span_id


def test_each_try_has_a_span_and_is_counted(house, log, spans):
    """One that failed says why; the next one is a redelivery; lags are those of what was taken."""
    failures = iter(range(2))

    def handler(called):
        if called.body == b"5" and next(failures, None) is not None:
            return answer(DeliveryAnswer.FAILED, "no room")
        return None

    registry = CollectorRegistry()
    fake = house.target(handler)
    publish(log, 10)
    player = house.player(
        declared(fake), observer=[PrometheusPlayerObserver(registry), TracingPlayerObserver()]
    )
    fake.store.wait_for(lambda: len(fake.store.done) == 10)
    (at,) = [
        str(each.position)
        for number in range(2)
        for each in log.read("orders", number)
        if each.text == "5"
    ]

    def tries():
        found = named(spans, "deliver orders")
        return [each for each in found if each.attributes["messaging.message.id"] == at]

    house.wait_for(lambda: len(tries()) == 3)
    assert [each.attributes["sharedlog.redelivery"] for each in tries()] == [False, True, True]
    assert ["no room" in (each.status.description or "") for each in tries()] == [True, True, False]

    def value(name):
        return registry.get_sample_value(
            f"sharedlog_target_{name}", {"player": "player", "target": "shop"}
        )

    house.wait_for(lambda: value("delivery_seconds_count") == 10)
    player.close()
    assert value("apply_seconds_count") == 10
    assert value("deliveries_total") == len(named(spans, "deliver orders"))
    assert value("redeliveries_total") == value("deliveries_total") - 10
    assert value("apply_seconds_sum") >= value("delivery_seconds_sum") > 0


def test_what_watches_breaks_nothing_and_nobody_pays_who_does_not(house, log):
    """An observer that raises is told once; without one deliveries are not looked at (§15)."""

    class Broken(sharedlog.PlayerObserver):
        def sending(self, delivery):
            raise ValueError("ours")

        def answered(self, delivery, begun, seconds, error):
            assert begun is None
            raise ValueError("ours")

    fake = house.target()
    house.player(declared(fake), observer=Broken())
    publish(log, 5)
    fake.store.wait_for(lambda: len(fake.store.done) == 5)
    assert not PlayerWatchers("player", [sharedlog.PlayerObserver()]).each_delivery
    assert UnderWay(PlayerWatchers("player", []), "shop", {}, lambda: 0.0).close("over") is None


@pytest.mark.parametrize("parent", ["x", "00-zz", "\n", "00-" + "0" * 40])
def test_a_player_that_sends_no_trace_is_no_reason_to_refuse(parent):
    """What is no context is none: the publisher's is used (§15)."""
    from sharedlog._target.requests import _trace
    from sharedlog.v1 import target_pb2

    assert _trace(target_pb2.Delivery(trace_parent=parent, trace_state="a=b")) == ("", "")
    good = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    assert _trace(target_pb2.Delivery(trace_parent=good, trace_state="a=b")) == (good, "a=b")
    assert _trace(target_pb2.Delivery(trace_parent=good, trace_state="a\n")) == (good, "")
