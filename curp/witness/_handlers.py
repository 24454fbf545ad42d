"""The handlers of a witness's requests, on serialised messages and its table (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from _rifl_ground.log import get_logger
from _rifl_ground.parsing import MOST_FIELDS, parse
from curp._core.conflict_keys import MAX_CONFLICT_KEYS, KeyFinder, recorded_keys
from curp._core.witness_table import Identity, WitnessTable, WitnessVerdict, log_of_group
from curp._key_declarations import fields_from_wire
from curp.v1 import curp_pb2
from curp.witness._journal import WitnessJournal
from lease_server._tokens import Secret, peer_bound, verify
from rifl._grpc.audit import CallerAudit
from rifl._stores.forks import belongs_here
from rifl._wire.header import parse_call
from rifl.core._shared.errors import BadHeader, NotYours, RiflError

_log = get_logger("curp.witness")

_M = TypeVar("_M", bound=Message)
_NO_KEYS: frozenset[int] = frozenset()
# The most bytes of one message of a freeze's stream, far below what gRPC takes.
_CHUNK_BYTES = 1 << 20
_MAX_SECRETS = 16
_MAX_METHODS = 10_000
# The most bytes of a record beside its request: header, keys, names.
_MAX_OVERHEAD_BYTES = 8 << 10
# The most records of one message, which is answered before anything else is done.
_MAX_RECORDS = 256
_NO_VERDICT = 0
_MAX_VERIFIED = 10_000
# Of what only the group's replicas send.
_MAX_FIELDS = 200_000

_VERDICTS = {
    verdict: curp_pb2.RecordReply(verdict=int(verdict)).SerializeToString()  # type: ignore[arg-type]
    for verdict in WitnessVerdict
}


class StreamReply(NamedTuple):
    """What a message of a stream is answered.

    ``following``: the number that the next message begins with. ``refusal``: set where no
    record of it had a verdict: why the last one had none. ``strangers``: the refusals of callers
    that are not let in.
    """

    reply: bytes
    following: int
    refusal: RiflError | None
    strangers: Sequence[RiflError] = ()


class WitnessHandlers:
    """Takes and gives serialised messages. One thread; blocks on the journal only.

    A record is accepted for a caller whose token the leader's secrets verify, as the
    leader itself would (invariant 2), and under conflict keys that the witness found
    itself if the leader told it how: a caller that lies about its own would
    else let others' answered calls be run again in another order.

    Raises ``RiflError`` for what is refused without a verdict: BAD_HEADER, NOT_YOURS.
    An OSError is the journal's, after which the witness must not go on.
    """

    def __init__(self, table: WitnessTable, journal: WitnessJournal | None = None) -> None:
        self._table = table
        self._journal = journal
        self.audit = CallerAudit()
        self._secrets: tuple[Secret, ...] = ()
        # Callers' tokens that these secrets verified, and for whom.
        self._verified: dict[bytes, tuple[int, bytes]] = {}
        self._finders: dict[str, KeyFinder | None] = {}
        self._longest = table.limits.max_request_bytes + _MAX_OVERHEAD_BYTES
        belongs_here(self, "witness")

    def record(self, raw: bytes, peer: Callable[[], bytes]) -> bytes:
        """Answer a RecordRequest; ``peer`` tells the authenticated caller."""
        return _VERDICTS[self._record(raw, peer)]

    def records(self, raw: bytes, peer: Callable[[], bytes], expected: int) -> StreamReply:
        """Answer a RecordsRequest, whose first record should have the number ``expected``.

        Each record is judged as if it came alone. One that is refused without a verdict has
        none in the reply either, and takes no other with it.
        """
        request = _parse(curp_pb2.RecordsRequest, raw)
        records = request.records
        if request.first != expected or not 1 <= len(records) <= _MAX_RECORDS:
            raise BadHeader(
                f"a message has 1 to {_MAX_RECORDS} records, numbered on from the last one's"
            )
        verdicts: list[int] = []
        refusal: RiflError | None = None
        judged = 0
        strangers: list[RiflError] = []
        for each in records:
            try:
                verdicts.append(self._record(each, peer))
                judged += 1
            except RiflError as error:
                refusal = error
                if error.denied is not None:
                    strangers.append(error)
                verdicts.append(_NO_VERDICT)
        reply = curp_pb2.RecordsReply(first=expected, verdicts=verdicts)  # type: ignore[arg-type]
        return StreamReply(
            reply.SerializeToString(),
            expected + len(verdicts),
            None if judged else refusal,
            strangers,
        )

    def _record(self, raw: bytes, peer: Callable[[], bytes]) -> WitnessVerdict:
        if len(raw) > self._longest:
            return WitnessVerdict.TOO_LARGE
        request = _parse(curp_pb2.RecordRequest, raw)
        call = request.call
        content, method = call.request, call.method
        identity, fingerprint, said = self._authenticate(call, content, method, peer)
        finders = self._finders
        if not finders:
            keys = frozenset(call.conflict_keys)
        elif (finder := finders.get(method)) is not None:
            keys = finder.find(content)
        elif method in finders:
            # A callable's: only who has it can tell. By the header, which the leader sees too:
            # what it does not cover is not answered first.
            keys = said
        else:
            keys = _NO_KEYS
        if len(keys) > MAX_CONFLICT_KEYS:
            keys = _NO_KEYS
        return self._table.record(
            request.configuration,
            identity,
            keys,
            fingerprint,
            call,
            len(content),
            request.log,
        )

    def collect(self, raw: bytes) -> bytes:
        """Answer a CollectRequest."""
        request = _parse(curp_pb2.CollectRequest, raw, _MAX_FIELDS)
        verdict, stuck = self._table.collect(
            request.group, request.configuration, map(_identity, request.synced)
        )
        if not stuck:
            return _VERDICTS[verdict]
        _log.info("stuck_calls_reported", calls=len(stuck), group=request.group)
        reply = curp_pb2.CollectReply(verdict=int(verdict), stuck=stuck)  # type: ignore[arg-type]
        return reply.SerializeToString()

    def freeze(self, raw: bytes) -> Iterator[bytes]:
        """Answer a FreezeRequest: one message at least, the calls in several."""
        request = _parse(curp_pb2.FreezeRequest, raw)
        group, number = request.group, request.configuration
        verdict = self._table.may_freeze(group, number)
        if verdict is not WitnessVerdict.ACCEPTED:
            _log.warning("freeze_refused", group=group, configuration=number, verdict=verdict.name)
            return iter((_VERDICTS[verdict],))
        calls = self._table.freeze(group, number)
        _log.info("frozen", group=group, configuration=number, calls=len(calls))
        return _chunks(calls)

    def start(self, raw: bytes) -> bytes:
        """Answer a StartRequest."""
        request = _parse(curp_pb2.StartRequest, raw, _MAX_FIELDS)
        group, number = request.group, request.configuration
        secrets, finders = _secrets(request.secrets), _finders(request.methods)
        if not log_of_group(group) or not number:
            raise BadHeader("a start names a group with its log's id, and a configuration number")
        verdict = self._table.may_start(group, number, refresh=request.refresh)
        if verdict is not WitnessVerdict.ACCEPTED:
            _log.warning("start_refused", group=group, configuration=number, verdict=verdict.name)
            return _VERDICTS[verdict]
        if not request.refresh:
            self._remember(group, number)
            self._table.start(group, number)
            self._finders = finders
            _log.info("started", group=group, configuration=number)
        self._secrets = secrets
        self._verified.clear()
        return _VERDICTS[verdict]

    def status(self) -> bytes:
        """Answer a WitnessStatusRequest."""
        table = self._table
        return curp_pb2.WitnessStatusReply(
            configuration=table.configuration,
            group=table.group,
            mode=table.mode.value,
            held=len(table),
            slots=table.limits.slots,
            accepted=table.accepted,
            refused=table.refused,
        ).SerializeToString()

    def _remember(self, group: str, number: int) -> None:
        if self._journal is not None and number > self._table.configuration:
            self._journal.write(group, number)

    def _authenticate(
        self, call: Any, content: bytes, method: str, peer: Callable[[], bytes]
    ) -> tuple[Identity, bytes, frozenset[int]]:
        parsed = parse_call(call.header, method, content)
        token = parsed.token
        bound = peer_bound(token)
        name = peer() if bound else b""
        whose = parsed.client_id, name
        if self._verified.get(token) != whose:
            if not verify(self._secrets, parsed.client_id, token, name):
                raise NotYours("the token is not valid for this client id")
            if len(self._verified) >= _MAX_VERIFIED:
                self._verified.clear()
            self._verified[token] = whose
        # What the caller says of itself counts for nothing.
        call.peer = name
        fingerprint = parsed.fingerprint or b""
        said = recorded_keys(parsed.conflict_keys)
        return (parsed.client_id, parsed.identity), fingerprint, said


def _parse(kind: type[_M], raw: bytes, most: int = MOST_FIELDS) -> _M:
    try:
        return parse(kind, raw, most)
    except DecodeError:
        raise BadHeader(f"the request is not a {kind.DESCRIPTOR.full_name}") from None


def _identity(collected: curp_pb2.Collected) -> Identity:
    if collected.WhichOneof("identity") == "key":
        return collected.client_id, collected.key
    return collected.client_id, collected.seq


def _chunks(calls: list[Any]) -> Iterator[bytes]:
    accepted: Any = int(WitnessVerdict.ACCEPTED)
    chunk, size = [], 0
    for call in calls:
        chunk.append(call)
        size += len(call.request)
        if size >= _CHUNK_BYTES:
            yield curp_pb2.FreezeReply(verdict=accepted, calls=chunk).SerializeToString()
            chunk, size = [], 0
    yield curp_pb2.FreezeReply(verdict=accepted, calls=chunk).SerializeToString()


def _secrets(message: curp_pb2.SecretsPut) -> tuple[Secret, ...]:
    if not 1 <= len(message.secrets) <= _MAX_SECRETS:
        raise BadHeader(f"a start brings 1 to {_MAX_SECRETS} secrets")
    try:
        return tuple(Secret(secret.key_id, secret.secret) for secret in message.secrets)
    except ValueError as error:
        raise BadHeader(f"a secret cannot be used: {error}") from None


def _finders(methods: Any) -> dict[str, KeyFinder | None]:
    if len(methods) > _MAX_METHODS:
        raise BadHeader(f"a group has at most {_MAX_METHODS} methods")
    found: dict[str, KeyFinder | None] = {}
    for method in methods:
        if method.by_callable:
            found[method.method] = None
            continue
        try:
            # Without fields it finds none: the method conflicts with everything.
            found[method.method] = KeyFinder(fields_from_wire(method.keys))
        except ValueError as error:
            raise BadHeader(f"the conflict keys of {method.method}: {error}") from None
    return found
