"""Invariants: checks of our own rules that stay on in production (DESIGN §9)."""

from __future__ import annotations


class InvariantViolated(RuntimeError):
    """A rule of the protocol was broken by our own code; stop serving."""


def invariant(condition: object, message: str) -> None:
    """Raise ``InvariantViolated`` unless ``condition`` is true.

    Never used on anything a peer controls: bad input gets a ``RiflError``.
    """
    if not condition:
        raise InvariantViolated(message)
