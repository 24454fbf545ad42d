"""Answers cut to what headers can carry (DESIGN §3)."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _rifl_ground.refusals import Outcome
from rifl.core._serving.sendable import cut, fits, sendable
from rifl.core._shared.record import CompletionRecord


def _on_the_wire(details: str) -> int:
    plain = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
    return len(quote(details, safe=plain, errors="replace"))


@given(st.text(), st.integers(min_value=9, max_value=200))
def test_details_are_cut_to_what_they_take_on_the_wire(details: str, limit: int) -> None:
    """As gRPC writes them, percent-encoded; what fits stays as it is (DESIGN §3)."""
    kept = cut(details, limit)
    assert _on_the_wire(kept) <= limit
    if _on_the_wire(details) <= limit:
        assert kept == details
    else:
        assert details.startswith(kept.removesuffix("…"))
        assert kept.endswith("…")


@pytest.mark.parametrize("where", ["initial_metadata", "trailing_metadata"])
def test_metadata_that_does_not_fit_is_told_as_that(where: str) -> None:
    """Executed, and this error is what is recorded: RESPONSE_TOO_LARGE (DESIGN §3)."""
    record = CompletionRecord(response=b"x")._replace(**{where: (("k", "v" * 1000),)})
    assert sendable(record, 2000) is record
    told = sendable(record, 1000)
    assert (told.code, told.reason, told.outcome) == (8, "RESPONSE_TOO_LARGE", Outcome.EXECUTED)
    assert told.response is None


def test_long_details_keep_their_code() -> None:
    """A status is what a handler decided; its text is cut (DESIGN §3)."""
    told = sendable(CompletionRecord(5, "é" * 5000), 1000)
    assert (told.code, told.reason) == (5, "")
    assert told.details.startswith("éé")


def test_binary_values_count_as_they_travel() -> None:
    """Base64 takes a third more (DESIGN §3)."""
    assert fits((("k-bin", b"\0" * 600),), 840)
    assert not fits((("k-bin", b"\0" * 600),), 830)


def test_details_can_be_sent() -> None:
    """Lone surrogates, which UTF-8 has no bytes for, are replaced: short texts too (DESIGN §4)."""
    assert cut("caf\udce9", 1000) == "caf?"
    assert sendable(CompletionRecord(5, "caf\udce9"), 1000).details == "caf?"
