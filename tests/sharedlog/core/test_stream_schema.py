"""A stream's values have the schema that who wrote first declared (DESIGN-LOG §16)."""

import pytest

from sharedlog._core.commit import Commit, Put
from sharedlog._core.errors import CorruptLog, NewerFormat, SchemaChanged
from sharedlog._core.stream_schema import StreamSchema, declare_schema, find_schema, forget_schema
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine

_ARROW = StreamSchema("arrow", "", b"\x00columns\n")


@pytest.fixture
def engine():
    return MemoryEngine()


def test_who_writes_first_declares_and_others_are_held_to_it(engine):
    """Until it is forgotten (§16)."""
    assert carry_out(engine, find_schema("s")) is None
    for _ in range(2):
        carry_out(engine, declare_schema("s", _ARROW))
    assert carry_out(engine, find_schema("s")) == _ARROW
    with pytest.raises(SchemaChanged, match="with other columns: nothing"):
        carry_out(engine, declare_schema("s", _ARROW._replace(data=b"")))
    told = declare_schema("s", _ARROW._replace(data=b""), lambda *_: "cents is missing")
    with pytest.raises(SchemaChanged, match=r"with other columns \(cents is missing\): nothing"):
        carry_out(engine, told)
    other = StreamSchema("protobuf", "bank.v1.DepositRequest", b"files")
    with pytest.raises(SchemaChanged, match=r"are arrow, and these are protobuf bank\.v1"):
        carry_out(engine, declare_schema("s", other))
    assert carry_out(engine, forget_schema("s"))
    assert not carry_out(engine, forget_schema("s"))
    carry_out(engine, declare_schema("s", other))
    assert carry_out(engine, find_schema("s")) == other


@pytest.mark.parametrize(("value", "error"), [(b"\x02x\n", NewerFormat), (b"\x01x", CorruptLog)])
def test_what_is_kept_otherwise_is_told(engine, value, error):
    """Nothing is guessed (§12)."""
    engine.commit(Commit(puts=(Put("schema/s", value),)))
    with pytest.raises(error):
        carry_out(engine, find_schema("s"))
