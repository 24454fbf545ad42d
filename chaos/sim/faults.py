"""Model of the world: faults, the points where they strike, and the account of both."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass

__all__ = ["ALL", "LEADER", "Coverage", "Fault", "PlannedFault", "Point"]

# Targets beside an index: the leader when the fault strikes; every server.
LEADER = -1
ALL = -2


class Fault(enum.Enum):
    """A kind of fault; the value is what traces and reports say."""

    LOSS = "loss"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    RESET = "reset"
    PARTITION = "partition"
    PARTITION_TO = "partition-to-server"
    PARTITION_FROM = "partition-from-server"
    CRASH = "crash"
    CRASH_DISK = "crash-without-disk"
    STOP = "stop"
    DRAIN = "drain"
    SLOW_DISK = "slow-disk"
    FULL_DISK = "full-disk"
    FAILED_FSYNC = "failed-fsync"
    # A backup is made; some time later the server goes on with that.
    RESTORE = "restored-from-a-backup"
    WALL_JUMP = "wall-clock-jump"
    ROTATE_SECRET = "rotate-secret"  # noqa: S105 - the name of a fault
    CLIENT_CRASH = "client-crash"
    CLIENT_STOP = "client-stop"
    CLIENT_LAPSE = "client-lapse"
    STORE_STALL = "store-stall"
    STORE_RESTART = "store-restart"
    STORE_LOSS = "store-loss"
    WITNESS_CRASH = "witness-crash"
    # What an operator asks a group's leader for.
    WITNESS_CHANGE = "witness-change"
    TRANSFER = "transfer"
    SNAPSHOT = "snapshot"
    # What others do to a writer of a log that they take for dead.
    RETIRE = "retired"
    TAKE_OVER = "fence-raised"
    # What happens to a query: an attempt of a task ends, another one is launched beside it, a copy
    # of its checkpoint is started.
    TASK_FAILED = "task-failed"
    SPECULATION = "speculation"
    COPY = "checkpoint-copied"
    # Of a player's target: another store, with nothing in it, in the place of its own; handlers
    # that do not come to their end; and what an operator wishes of it.
    WIPE = "wiped"
    HANG = "hung-handlers"
    PAUSE = "paused"
    REPLAY = "replayed"


class Point(enum.Enum):
    """Where in the life of a call, or of a message, a fault can strike."""

    # A server's call, when its process dies or stops.
    CLAIMING = "claiming"
    INTENT = "intent-queued"
    HANDLER = "handler-before-effect"
    EFFECT = "handler-after-effect"
    RECORD = "record-queued"
    WAITING = "duplicate-waits"
    COMMITTING = "commit-under-way"
    ANSWERED = "answer-just-sent"
    # The first handler of a client runs, and nothing else of the client is durable.
    FIRST = "first-call-of-a-client"
    # A client was told that its lease is over.
    EXPIRED = "told-as-expired"
    # Some handlers of a batch have run, others not; none of its records is durable.
    BATCH_PART = "batch-partly-run"
    BATCH_RECORD = "batch-records-queued"
    # A handler runs, and its request stream has not ended; some messages of a response
    # stream are made.
    HALF_READ = "request-stream-half-read"
    HALF_MADE = "response-stream-half-made"
    # A request stream ends before its end, under its handler.
    BROKEN_OFF = "request-stream-broken-off"
    # Of an idempotent method, which a crash lets run again.
    REPEATABLE_RAN = "idempotent-call-has-run"
    REPEATABLE_ANSWERED = "idempotent-call-answered"
    # A group's leader: an answer left before the log had it; an entry is in the log,
    # and no caller was told.
    ANSWERED_FIRST = "answered-before-the-log"
    LOGGED = "logged-before-the-answer"
    # The next leader froze a witness, and has not started any.
    RECOVERING = "recovering"
    # The leader took the number of another witness list; it serves under that list.
    NUMBERED = "number-taken-for-a-list"
    RELISTED = "witness-list-in-force"
    # It takes no more calls; it saved a snapshot; it trimmed the log behind one.
    HANDING_OVER = "handing-over"
    SAVED = "snapshot-saved"
    TRIMMED = "log-trimmed"
    # It asks for its lease to be renewed; it was told that it is.
    RENEWING = "renewal-under-way"
    RENEWED = "lease-renewed"
    # A replica begins at a snapshot; it finds that what it would read is trimmed.
    FROM_SNAPSHOT = "from-a-snapshot"
    BEHIND_SNAPSHOT = "behind-a-snapshot"
    IDLE = "idle"
    # A message.
    CALL = "call"
    ANSWER = "answer"
    BATCH = "batch"
    BATCH_ANSWER = "batch-answer"
    REQUEST_STREAM = "request-stream-message"
    REQUEST_STREAM_ANSWER = "request-stream-answer"
    RESPONSE_STREAM = "response-stream-request"
    RESPONSE_STREAM_MESSAGE = "response-stream-message"
    LEASE = "lease-request"
    LEASE_ANSWER = "lease-answer"
    RESOLVE = "resolve"
    RESOLVE_ANSWER = "resolve-answer"
    SESSION = "session-request"
    SESSION_ANSWER = "session-answer"
    # A request to a shared store.
    CLAIM_REQUEST = "claim-request"
    FINISH_REQUEST = "finish-request"
    BEAT_REQUEST = "beat-request"
    OTHER_REQUEST = "other-request"
    APPEND = "append"
    # And other requests to a log, by what they are for.
    PENDING = "pending-append"
    MARKER = "marker"
    RETIRING = "retirement"
    FENCING = "fence"
    GRANTING = "grant"
    FOLLOWING = "committed-read"
    TICKED = "read-after-a-timer"
    HOLDING_ON = "hold-moved"
    NAMED = "named-append"
    APPEND_IN = "append-in-a-transaction"
    TRIMMING = "trim"
    DUTY = "duty"
    # Of a query's batch.
    PLANNING = "plan-drawn"
    JOINING = "batch-joined"
    SIGNING = "sign-of-life"
    CLOSING = "batch-committed"
    ABANDONING = "plan-abandoned"
    # Of a player to its log.
    BINDING = "index-held-against-the-log"
    TELLING = "rows-of-a-player"
    # Between a player and a target.
    ASKED_WHERE = "target-asked-where-it-is"
    TOLD_WHERE = "target-says-where-it-is"
    DELIVERY = "delivery"
    DELIVERED = "delivery-answer"
    # What a player's target is just then, to the player.
    TARGET_S = "target-in-S"
    TARGET_ASKED = "target-in-ASKED"
    TARGET_RF = "target-in-RF"
    TARGET_FC = "target-in-FC"
    TARGET_N = "target-in-N"
    # A target moves an index alone.
    INDEX = "index-moved"
    # Between a client or a leader and a witness, or a client and its group.
    WITNESS = "witness-request"
    WITNESS_ANSWER = "witness-answer"
    RECORDED = "record-request"
    RECORDED_ANSWER = "record-answer"
    GROUP = "group-request"
    GROUP_ANSWER = "group-answer"
    OPERATOR = "operator-request"
    OPERATOR_ANSWER = "operator-answer"
    HOLDING = "witness-holds-calls"
    # Of a consumer: to its log, to its store, and to the service that its handlers call.
    LOOKING = "rows-of-a-consumer"
    MEMBER = "member-says-it-is-there"
    SHARING = "shard-shared"
    STATE = "state-in-the-log"
    STORE_TAKEN = "store-taken-over"
    NOTE = "attempt-noted"
    STORE_COMMIT = "store-commit"
    INTENDED = "call-kept"
    ANSWER_KEPT = "call-answer-kept"
    # A client's call when its process dies or stops.
    UNANSWERED = "call-unanswered"


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: ``at`` seconds of true time, for ``seconds``, at a target.

    ``target`` counts the servers or clients of the deployment, or is LEADER or ALL; ``share`` is a
    probability or a factor, as the kind needs. ``aim``: wait for a call that is there.
    ``some``: every second client meets it, and the others do not. ``sends``: what the target
    itself asks others meets it, and what it is asked does not.
    """

    at: float
    fault: Fault
    seconds: float
    target: int
    share: float
    aim: Point | None = None
    some: bool = False
    sends: bool = False

    def __str__(self) -> str:
        """Short enough for a line of a trace."""
        return (
            f"{self.fault.value} of {self.target} at {self.at:.3f}s "
            f"for {self.seconds:.3f}s, {self.share:.2f}"
            + (f", at {self.aim.value}" if self.aim else "")
            + (", for some clients" if self.some else "")
            + (", of what it sends" if self.sends else "")
        )


class Coverage(Counter[tuple[str, str]]):
    """How often each fault struck at each point."""

    def hit(self, fault: Fault, point: Point) -> None:
        """Count one strike."""
        self[fault._value_, point._value_] += 1
