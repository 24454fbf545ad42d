"""Declarations of methods (DESIGN §1, §4, §9: configuration is checked when built)."""

from __future__ import annotations

from typing import Literal

import grpc
import pytest

from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy, PolicyError
from rifl.core._shared.codes import CODE_NUMBERS


@pytest.mark.parametrize("kind", list(Kind))
def test_a_kind_may_be_said_in_words(kind: Kind) -> None:
    """``kind="plain"`` is Kind.PLAIN: a word is never taken for a weaker kind (DESIGN §1)."""
    assert MethodPolicy(kind=kind.value).kind is kind  # type: ignore[arg-type]
    assert MethodPolicy(kind=kind).kind is kind
    declared = MethodPolicy.of(kind.value)
    assert declared is not None
    assert declared.kind is kind


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "exactly-once"},
        {"kind": None},
        {"kind": Kind.PLAIN, "database": "sqlite:///x"},
        {"kind": "plain", "database": "sqlite:///x"},
        {"unrecorded": {0}},
        {"unrecorded": {17}},
        {"unrecorded": {-1}},
        {"unrecorded": {True}},
        {"unrecorded": {"UNAVAILIBLE"}},
        {"retention_s": 0},
        {"key_field": "a..b"},
        {"buffer_bytes": -1},
        {"max_response_bytes": 0},
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(wrong: dict[str, object]) -> None:
    """What would silently do nothing, or less, is a ValueError when built (DESIGN §9)."""
    with pytest.raises(ValueError):  # noqa: PT011 - the message differs by field
        MethodPolicy(**wrong)  # type: ignore[arg-type]


def test_an_atomic_method_named_in_words_may_name_a_database() -> None:
    """The cross-check of kind and database knows the word as well (DESIGN §6)."""
    policy = MethodPolicy(kind="atomic", database="sqlite:///x")  # type: ignore[arg-type]
    assert policy.kind is Kind.ATOMIC


def test_numbers_of_codes_are_kept_as_a_set() -> None:
    """Any iterable of code numbers is what the rules look up in (DESIGN §4)."""
    assert MethodPolicy(unrecorded=[14, 8]).unrecorded == frozenset({8, 14})  # type: ignore[arg-type]


def test_codes_are_numbers_names_or_grpcs_own() -> None:
    """However a code is written, the rules look up its number (DESIGN §4)."""
    written: object = {"ABORTED", grpc.StatusCode.UNAVAILABLE, 5}
    assert MethodPolicy(unrecorded=written).unrecorded == frozenset({5, 10, 14})  # type: ignore[arg-type]
    assert {code.name: code.value[0] for code in grpc.StatusCode} == CODE_NUMBERS


def test_the_most_specific_pattern_fits() -> None:
    """Method before service before ``*``; None excludes (MethodPolicies' contract)."""
    policies = MethodPolicies(
        {"/p.S/M": "atomic", "/p.S/*": "idempotent", "/p.S/Watch": None, "/p.T/*": None},
        "plain",
    )

    def kind(method: str) -> Kind | None:
        policy = policies.find(method)
        return None if policy is None else policy.kind

    assert [kind(m) for m in ("/p.S/M", "/p.S/Other", "/p.S/Watch", "/p.T/M", "/q.S/M")] == [
        Kind.ATOMIC,
        Kind.IDEMPOTENT,
        None,
        None,
        Kind.PLAIN,
    ]
    assert policies.deduplicated() == ["*", "/p.S/M", "/p.S/*"]
    assert policies.not_deduplicated() == ["/p.S/Watch", "/p.T/*"]


@pytest.mark.parametrize("pattern", ["p.S/M", "/p.S", "/a/b/c", ""])
def test_a_pattern_that_fits_nothing_is_refused(pattern: str) -> None:
    """A mistyped pattern is an error, not a method without protection (DESIGN §9)."""
    with pytest.raises(ValueError, match="is not"):
        MethodPolicies({pattern: "plain"}, None)


def test_a_claim_that_says_nothing_is_refused() -> None:
    """A mistyped word is an error, not a method that is claimed as any other (DESIGN §9)."""
    with pytest.raises(ValueError, match="claim"):
        MethodPolicy(kind="atomic", claim="nver")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["plain", "atomic"])
def test_only_what_may_run_again_needs_no_claim(kind: Literal["plain", "atomic"]) -> None:
    """Of another kind a late copy would be a second effect (DESIGN §4, step 6)."""
    with pytest.raises(PolicyError, match="idempotent"):
        MethodPolicy(kind=kind, claim="never")
    assert MethodPolicy(kind="idempotent", claim="never").claim == "never"
