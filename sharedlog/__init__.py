"""A shared log: an event that was appended once is read once, in order (DESIGN-LOG §10).

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
- ``testing``: a kit for tests of consumers; ``_events``: the table of events.
- ``spark``: streams as sources and sinks of Spark's queries.

What it imports of rifl is listed in DESIGN-LOG §11.
"""

from typing import TYPE_CHECKING

from _rifl_ground.exports import exported

if TYPE_CHECKING:
    from sharedlog._consumer.awaiting import await_consumer as await_consumer
    from sharedlog._consumer.consumer import Consumer as Consumer
    from sharedlog._consumer.effects import Effects as Effects
    from sharedlog._consumer.state_view import StateView as StateView
    from sharedlog._core.catalog import Stream as Stream
    from sharedlog._core.consumer.observer import ConsumerObserver as ConsumerObserver
    from sharedlog._core.consumer.observer import HandlingReport as HandlingReport
    from sharedlog._core.envelope import About as About
    from sharedlog._core.errors import AlreadyCommitted as AlreadyCommitted
    from sharedlog._core.errors import AnswerGone as AnswerGone
    from sharedlog._core.errors import AppendUnknown as AppendUnknown
    from sharedlog._core.errors import CallAfterWrite as CallAfterWrite
    from sharedlog._core.errors import CallForgotten as CallForgotten
    from sharedlog._core.errors import CallMismatch as CallMismatch
    from sharedlog._core.errors import CheckpointWentBack as CheckpointWentBack
    from sharedlog._core.errors import CorruptLog as CorruptLog
    from sharedlog._core.errors import Fenced as Fenced
    from sharedlog._core.errors import HandlerEnded as HandlerEnded
    from sharedlog._core.errors import HoldMoved as HoldMoved
    from sharedlog._core.errors import InvalidRequest as InvalidRequest
    from sharedlog._core.errors import LogError as LogError
    from sharedlog._core.errors import LogExists as LogExists
    from sharedlog._core.errors import LogForked as LogForked
    from sharedlog._core.errors import LogFull as LogFull
    from sharedlog._core.errors import LogStopped as LogStopped
    from sharedlog._core.errors import LogUnavailable as LogUnavailable
    from sharedlog._core.errors import NewerFormat as NewerFormat
    from sharedlog._core.errors import NoSuchLog as NoSuchLog
    from sharedlog._core.errors import NoSuchOutbox as NoSuchOutbox
    from sharedlog._core.errors import NoSuchStream as NoSuchStream
    from sharedlog._core.errors import NotAllowed as NotAllowed
    from sharedlog._core.errors import NotDurable as NotDurable
    from sharedlog._core.errors import OutboxWentBack as OutboxWentBack
    from sharedlog._core.errors import OutOfOrder as OutOfOrder
    from sharedlog._core.errors import PredecessorMismatch as PredecessorMismatch
    from sharedlog._core.errors import ProducerRetired as ProducerRetired
    from sharedlog._core.errors import QuotaExceeded as QuotaExceeded
    from sharedlog._core.errors import ReentrantUse as ReentrantUse
    from sharedlog._core.errors import SchemaChanged as SchemaChanged
    from sharedlog._core.errors import SealedMessage as SealedMessage
    from sharedlog._core.errors import SeqReused as SeqReused
    from sharedlog._core.errors import SpanGone as SpanGone
    from sharedlog._core.errors import StoreAway as StoreAway
    from sharedlog._core.errors import StoreStopped as StoreStopped
    from sharedlog._core.errors import StoreWentBack as StoreWentBack
    from sharedlog._core.errors import TrimmedLog as TrimmedLog
    from sharedlog._core.errors import UnknownProducer as UnknownProducer
    from sharedlog._core.errors import WrongTransaction as WrongTransaction
    from sharedlog._core.fences import Fence as Fence
    from sharedlog._core.holds import Hold as Hold
    from sharedlog._core.message import Message as Message
    from sharedlog._core.observer import HoldReport as HoldReport
    from sharedlog._core.observer import LogObserver as LogObserver
    from sharedlog._core.observer import LogReport as LogReport
    from sharedlog._core.observer import QueryReport as QueryReport
    from sharedlog._core.player.failing import TargetStopped as TargetStopped
    from sharedlog._core.player.observer import DeliveryReport as DeliveryReport
    from sharedlog._core.player.observer import PlayerObserver as PlayerObserver
    from sharedlog._core.player.observer import TargetReport as TargetReport
    from sharedlog._core.player.rows import TargetState as TargetState
    from sharedlog._core.position import Position as Position
    from sharedlog._core.reading import State as State
    from sharedlog._core.target_methods import Delivered as Delivered
    from sharedlog._log.following import Following as Following
    from sharedlog._log.log import Log as Log
    from sharedlog._log.opening import create as create
    from sharedlog._log.opening import open as open  # noqa: A004 - sharedlog.open
    from sharedlog._log.producer import Producer as Producer
    from sharedlog._log.sweeper import Sweeper as Sweeper
    from sharedlog._log.transaction import Transaction as Transaction
    from sharedlog._log.trimming import Trimming as Trimming
    from sharedlog._outbox.adopting import Adopted as Adopted
    from sharedlog._outbox.adopting import adopt_outbox as adopt_outbox
    from sharedlog._outbox.outbox import Outbox as Outbox
    from sharedlog._outbox.outbox import create_outbox as create_outbox
    from sharedlog._outbox.outbox import outbox as outbox
    from sharedlog._outbox.relay import Relay as Relay
    from sharedlog._outbox.relay import relay as relay
    from sharedlog._player.declared import Target as Target
    from sharedlog._player.player import Player as Player
    from sharedlog._target.adding import add_target_to_server as add_target_to_server
    from sharedlog._target.adding import delivery as delivery
else:
    __all__, __getattr__, __dir__ = exported(
        __name__,
        {
            "sharedlog._consumer.awaiting": "await_consumer",
            "sharedlog._consumer.consumer": "Consumer",
            "sharedlog._consumer.effects": "Effects",
            "sharedlog._consumer.state_view": "StateView",
            "sharedlog._core.catalog": "Stream",
            "sharedlog._core.consumer.observer": "ConsumerObserver HandlingReport",
            "sharedlog._core.envelope": "About",
            "sharedlog._core.errors": (
                "AlreadyCommitted AnswerGone AppendUnknown CallAfterWrite CallForgotten "
                "CallMismatch CheckpointWentBack CorruptLog Fenced HandlerEnded HoldMoved "
                "InvalidRequest LogError LogExists LogForked LogFull LogStopped "
                "LogUnavailable NewerFormat NoSuchLog NoSuchOutbox NoSuchStream NotAllowed "
                "NotDurable OutOfOrder OutboxWentBack PredecessorMismatch ProducerRetired "
                "QuotaExceeded ReentrantUse SchemaChanged SealedMessage SeqReused SpanGone "
                "StoreAway StoreStopped StoreWentBack TrimmedLog UnknownProducer "
                "WrongTransaction"
            ),
            "sharedlog._core.fences": "Fence",
            "sharedlog._core.holds": "Hold",
            "sharedlog._core.message": "Message",
            "sharedlog._core.observer": "HoldReport LogObserver LogReport QueryReport",
            "sharedlog._core.player.failing": "TargetStopped",
            "sharedlog._core.player.observer": "DeliveryReport PlayerObserver TargetReport",
            "sharedlog._core.player.rows": "TargetState",
            "sharedlog._core.position": "Position",
            "sharedlog._core.reading": "State",
            "sharedlog._core.target_methods": "Delivered",
            "sharedlog._log.following": "Following",
            "sharedlog._log.log": "Log",
            "sharedlog._log.opening": "create open",
            "sharedlog._log.producer": "Producer",
            "sharedlog._log.sweeper": "Sweeper",
            "sharedlog._log.transaction": "Transaction",
            "sharedlog._log.trimming": "Trimming",
            "sharedlog._outbox.adopting": "Adopted adopt_outbox",
            "sharedlog._outbox.outbox": "Outbox create_outbox outbox",
            "sharedlog._outbox.relay": "Relay relay",
            "sharedlog._player.declared": "Target",
            "sharedlog._player.player": "Player",
            "sharedlog._target.adding": "add_target_to_server delivery",
        },
    )
