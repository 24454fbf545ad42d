"""One shared log: an event that was appended once is read once, in order (DESIGN-LOG §10).

::

    with sharedlog.create("sqlite:///events.log") as log:
        log.stream("orders")
        log.publish("orders", b"an order", key="customer 7")

- ``_core``: the rules, without I/O (DESIGN-LOG §12, §13).
- ``_engines``: where a log lives.
- ``_service``: a log over gRPC, and ``_remote``, the other end; ``_wire``: what both have.
- ``_log``: what programs use; ``_aio``: the same for asyncio, whose door is ``aio``.
- ``_player``: a log's messages delivered to gRPC services.
- ``_outbox``: messages that wait in an application's database.
- ``_consumer``: functions that consume, change a database and publish.
- ``_target``: a server whose methods are called with messages.
- ``_cli``: the command, also ``python -m sharedlog``.

- ``metrics``, ``tracing``: of Prometheus and OpenTelemetry, each with its extra.
- ``testing``: a kit for tests of consumers.
- ``spark``: streams as sources and sinks of Spark's queries.

What it imports of rifl is listed in DESIGN-LOG §11.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharedlog._consumer.awaiting import await_consumer
    from sharedlog._consumer.consumer import Consumer
    from sharedlog._consumer.effects import Effects
    from sharedlog._core.catalog import Stream
    from sharedlog._core.consumer.observer import ConsumerObserver, HandlingReport
    from sharedlog._core.envelope import About
    from sharedlog._core.errors import (
        AlreadyCommitted,
        AnswerGone,
        CallAfterWrite,
        CallForgotten,
        CallMismatch,
        CheckpointWentBack,
        CorruptLog,
        Fenced,
        HoldMoved,
        InvalidRequest,
        LogError,
        LogExists,
        LogForked,
        LogFull,
        LogStopped,
        LogUnavailable,
        NewerFormat,
        NoSuchLog,
        NoSuchOutbox,
        NoSuchStream,
        NotAllowed,
        NotDurable,
        OutboxWentBack,
        OutcomeUnknown,
        OutOfOrder,
        PredecessorMismatch,
        ProducerRetired,
        QuotaExceeded,
        ReentrantCall,
        SchemaChanged,
        SealedMessage,
        SeqReused,
        SpanGone,
        StoreStopped,
        StoreUnavailable,
        StoreWentBack,
        TrimmedLog,
        UnknownProducer,
        WrongTransaction,
    )
    from sharedlog._core.fences import Fence
    from sharedlog._core.holds import Hold
    from sharedlog._core.message import Message
    from sharedlog._core.observer import HoldReport, LogReport, Observer, QueryReport
    from sharedlog._core.player.failing import TargetStopped
    from sharedlog._core.player.observer import DeliveryReport, PlayerObserver, TargetReport
    from sharedlog._core.player.rows import TargetState
    from sharedlog._core.position import Position
    from sharedlog._core.reading import State
    from sharedlog._core.target_methods import Delivered
    from sharedlog._log.following import Following
    from sharedlog._log.log import Log
    from sharedlog._log.opening import create_log as create
    from sharedlog._log.opening import open_log as open  # noqa: A004 - `sharedlog.open`
    from sharedlog._log.producer import Producer
    from sharedlog._log.sweeper import Sweeper
    from sharedlog._log.transaction import Transaction
    from sharedlog._log.trimming import Trimming
    from sharedlog._outbox.adopting import Adopted, adopt_outbox
    from sharedlog._outbox.outbox import Outbox, create_outbox, outbox
    from sharedlog._outbox.relay import Relay, relay
    from sharedlog._player.declared import Target
    from sharedlog._player.player import Player
    from sharedlog._target.adding import add_target_to_server, delivery

__all__ = [
    "About",
    "Adopted",
    "AlreadyCommitted",
    "AnswerGone",
    "CallAfterWrite",
    "CallForgotten",
    "CallMismatch",
    "CheckpointWentBack",
    "Consumer",
    "ConsumerObserver",
    "CorruptLog",
    "Delivered",
    "DeliveryReport",
    "Effects",
    "Fence",
    "Fenced",
    "Following",
    "HandlingReport",
    "Hold",
    "HoldMoved",
    "HoldReport",
    "InvalidRequest",
    "Log",
    "LogError",
    "LogExists",
    "LogForked",
    "LogFull",
    "LogReport",
    "LogStopped",
    "LogUnavailable",
    "Message",
    "NewerFormat",
    "NoSuchLog",
    "NoSuchOutbox",
    "NoSuchStream",
    "NotAllowed",
    "NotDurable",
    "Observer",
    "OutOfOrder",
    "Outbox",
    "OutboxWentBack",
    "OutcomeUnknown",
    "Player",
    "PlayerObserver",
    "Position",
    "PredecessorMismatch",
    "Producer",
    "ProducerRetired",
    "QueryReport",
    "QuotaExceeded",
    "ReentrantCall",
    "Relay",
    "SchemaChanged",
    "SealedMessage",
    "SeqReused",
    "SpanGone",
    "State",
    "StoreStopped",
    "StoreUnavailable",
    "StoreWentBack",
    "Stream",
    "Sweeper",
    "Target",
    "TargetReport",
    "TargetState",
    "TargetStopped",
    "Transaction",
    "TrimmedLog",
    "Trimming",
    "UnknownProducer",
    "WrongTransaction",
    "add_target_to_server",
    "adopt_outbox",
    "await_consumer",
    "create",
    "create_outbox",
    "delivery",
    "open",
    "outbox",
    "relay",
]

# Where each name is: whoever asks for it first has that part imported, and no other.
_HOMES = {
    "About": "sharedlog._core.envelope",
    "Adopted": "sharedlog._outbox.adopting",
    "AlreadyCommitted": "sharedlog._core.errors",
    "AnswerGone": "sharedlog._core.errors",
    "CallAfterWrite": "sharedlog._core.errors",
    "CallForgotten": "sharedlog._core.errors",
    "CallMismatch": "sharedlog._core.errors",
    "CheckpointWentBack": "sharedlog._core.errors",
    "Consumer": "sharedlog._consumer.consumer",
    "ConsumerObserver": "sharedlog._core.consumer.observer",
    "CorruptLog": "sharedlog._core.errors",
    "Delivered": "sharedlog._core.target_methods",
    "DeliveryReport": "sharedlog._core.player.observer",
    "Effects": "sharedlog._consumer.effects",
    "Fence": "sharedlog._core.fences",
    "Fenced": "sharedlog._core.errors",
    "Following": "sharedlog._log.following",
    "HandlingReport": "sharedlog._core.consumer.observer",
    "Hold": "sharedlog._core.holds",
    "HoldMoved": "sharedlog._core.errors",
    "HoldReport": "sharedlog._core.observer",
    "InvalidRequest": "sharedlog._core.errors",
    "Log": "sharedlog._log.log",
    "LogError": "sharedlog._core.errors",
    "LogExists": "sharedlog._core.errors",
    "LogForked": "sharedlog._core.errors",
    "LogFull": "sharedlog._core.errors",
    "LogReport": "sharedlog._core.observer",
    "LogStopped": "sharedlog._core.errors",
    "LogUnavailable": "sharedlog._core.errors",
    "Message": "sharedlog._core.message",
    "NewerFormat": "sharedlog._core.errors",
    "NoSuchLog": "sharedlog._core.errors",
    "NoSuchOutbox": "sharedlog._core.errors",
    "NoSuchStream": "sharedlog._core.errors",
    "NotAllowed": "sharedlog._core.errors",
    "NotDurable": "sharedlog._core.errors",
    "Observer": "sharedlog._core.observer",
    "OutOfOrder": "sharedlog._core.errors",
    "Outbox": "sharedlog._outbox.outbox",
    "OutboxWentBack": "sharedlog._core.errors",
    "OutcomeUnknown": "sharedlog._core.errors",
    "Player": "sharedlog._player.player",
    "PlayerObserver": "sharedlog._core.player.observer",
    "Position": "sharedlog._core.position",
    "PredecessorMismatch": "sharedlog._core.errors",
    "Producer": "sharedlog._log.producer",
    "QueryReport": "sharedlog._core.observer",
    "ProducerRetired": "sharedlog._core.errors",
    "QuotaExceeded": "sharedlog._core.errors",
    "ReentrantCall": "sharedlog._core.errors",
    "Relay": "sharedlog._outbox.relay",
    "SchemaChanged": "sharedlog._core.errors",
    "SealedMessage": "sharedlog._core.errors",
    "SeqReused": "sharedlog._core.errors",
    "SpanGone": "sharedlog._core.errors",
    "State": "sharedlog._core.reading",
    "StoreStopped": "sharedlog._core.errors",
    "StoreUnavailable": "sharedlog._core.errors",
    "StoreWentBack": "sharedlog._core.errors",
    "Stream": "sharedlog._core.catalog",
    "Sweeper": "sharedlog._log.sweeper",
    "Target": "sharedlog._player.declared",
    "TargetReport": "sharedlog._core.player.observer",
    "TargetState": "sharedlog._core.player.rows",
    "TargetStopped": "sharedlog._core.player.failing",
    "Transaction": "sharedlog._log.transaction",
    "TrimmedLog": "sharedlog._core.errors",
    "Trimming": "sharedlog._log.trimming",
    "UnknownProducer": "sharedlog._core.errors",
    "WrongTransaction": "sharedlog._core.errors",
    "add_target_to_server": "sharedlog._target.adding",
    "adopt_outbox": "sharedlog._outbox.adopting",
    "await_consumer": "sharedlog._consumer.awaiting",
    "create": "sharedlog._log.opening:create_log",
    "create_outbox": "sharedlog._outbox.outbox",
    "delivery": "sharedlog._target.adding",
    "open": "sharedlog._log.opening:open_log",
    "outbox": "sharedlog._outbox.outbox",
    "relay": "sharedlog._outbox.relay",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, there = home.partition(":")
    found = getattr(import_module(module), there or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
