"""Records as a store keeps them: sealed where the user asks."""

from __future__ import annotations

from collections.abc import Callable

from _rifl_ground.log import get_logger
from _rifl_ground.refusals import Outcome
from rifl._stores.errors import StoreCorrupt
from rifl._wire.records import record_and_seed, record_to_bytes, seed_field
from rifl.core._serving.answer import refusal_record
from rifl.core._serving.client_table import match_seed
from rifl.core._shared.call import Call
from rifl.core._shared.errors import OutcomeUnknown
from rifl.core._shared.identity import RpcId
from rifl.core._shared.record import CompletionRecord

_log = get_logger("rifl.store")

# The data, and what is authenticated beside it: ``Call.place``.
Transform = Callable[[bytes, bytes], bytes]
# No protobuf message starts with it: what does is an envelope.
_ENVELOPE = 0
_SEALED = 1
# The envelope's first byte, and its flags.
_ENVELOPE_BYTES = 2


class RecordCodec:
    """Turns records into what a store keeps, and back.

    ``seal`` and ``unseal`` are the user's, both or neither: any thread, possibly in many at
    once. Each gets bytes and the place of their call (``Call.place``) as associated data, and
    returns bytes. Sealed are answers whole (status, metadata, messages); identities and method
    names are not. ``require_sealed``: a record that is not sealed is not believed.

    With ``seal`` None a record is stored as the protobuf message that it is.
    """

    def __init__(
        self,
        seal: Transform | None = None,
        unseal: Transform | None = None,
        *,
        require_sealed: bool = False,
    ) -> None:
        if (seal is None) is not (unseal is None):
            raise ValueError("seal and unseal are given together, or not at all")
        if require_sealed and seal is None:
            raise ValueError("require_sealed needs seal and unseal")
        self._seal = seal
        self._unseal = unseal
        self._require_sealed = require_sealed
        self._most_bytes: int | None = None

    def bounded(self, most_bytes: int) -> RecordCodec:
        """Return one that refuses to serialise a record of more bytes: ``of_a_run`` tells so."""
        made = RecordCodec(self._seal, self._unseal, require_sealed=self._require_sealed)
        made._most_bytes = most_bytes
        return made

    def to_bytes(self, record: CompletionRecord, call: Call | None) -> bytes:
        """Serialise a call's record with its seed.

        ``call`` is None for a verdict about any call, which is never sealed.

        Raises what ``seal`` raises, and ``ValueError`` beyond the bounds of ``bounded``: the call's
        record cannot be written then.
        """
        data = record_to_bytes(record)
        if call is not None and call.seed:
            data += seed_field(call.seed)
        if self._seal is not None and call is not None:
            data = bytes((_ENVELOPE, _SEALED)) + self._seal(data, call.place)
        if self._most_bytes is not None and len(data) > self._most_bytes:
            raise ValueError(
                f"the record has {len(data)} bytes, and the store's server takes {self._most_bytes}"
            )
        return data

    def of_a_run(self, record: CompletionRecord, call: Call) -> tuple[CompletionRecord, bytes]:
        """Return the record to keep of a call that has run, and its bytes.

        A record must be kept, and it must be what the first caller is told: if
        ``seal`` fails, that is OUTCOME_UNKNOWN.
        """
        try:
            return record, self.to_bytes(record, call)
        except Exception:  # noqa: BLE001 - whatever the user's seal raises
            _log.exception("record_not_kept", method=call.method)
            lost = refusal_record(
                OutcomeUnknown(
                    "the call ran, and its answer could not be kept: the server's events say why"
                )
            )
            return lost, RecordCodec().to_bytes(lost, call)

    def from_bytes(self, data: bytes, call: Call | None = None) -> CompletionRecord:
        """Read a record, for a ``call`` of its identity if there is one.

        Raises ``ValueError`` for bytes that are none, ``StoreMismatch`` for the record of
        another client's call (``match_seed``), and ``OutcomeUnknown`` for a sealed one that
        ``unseal`` (if there is one) does not open: its answer is lost with the key, or it is
        another call's. The same for one that must be sealed and is not.
        """
        flags = 0
        if data[:1] == bytes((_ENVELOPE,)):
            if len(data) < _ENVELOPE_BYTES:
                raise ValueError("the stored bytes end within their envelope")
            flags, data = data[1], data[_ENVELOPE_BYTES:]
        if flags & _SEALED:
            if self._unseal is None or call is None:
                raise OutcomeUnknown("the call's record is sealed, and no unseal was given")
            try:
                data = self._unseal(data, call.place)
            except Exception as error:
                raise OutcomeUnknown("the call's record cannot be unsealed") from error
            return _read(data, call)
        record = _read(data, call)
        if self._require_sealed and record.outcome is not Outcome.UNKNOWN:
            raise OutcomeUnknown("the call's record is not sealed, and require_sealed was given")
        return record

    @staticmethod
    def inspected(stored: bytes | None, rpc_id: RpcId) -> CompletionRecord | None:
        """Return a record as it looks without the user's key; None if there is none.

        Raises ``StoreCorrupt`` for bytes that are none.
        """
        if stored is None:
            return None
        try:
            return RecordCodec().from_bytes(stored)
        except OutcomeUnknown as sealed:
            return refusal_record(sealed)
        except ValueError as error:
            raise StoreCorrupt(f"the record of {rpc_id} is damaged") from error

    @staticmethod
    def is_unknown(data: bytes) -> bool:
        """Whether a stored record says that the call's outcome is not known.

        A sealed or damaged answer does not: the call ran.
        """
        try:
            return RecordCodec().from_bytes(data).outcome is Outcome.UNKNOWN
        except (OutcomeUnknown, ValueError):
            return False


def _read(data: bytes, call: Call | None) -> CompletionRecord:
    record, seed = record_and_seed(data)
    if call is not None:
        match_seed(call, seed)
    return record
