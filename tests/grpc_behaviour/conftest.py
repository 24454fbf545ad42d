"""Each case runs over bare gRPC and over ours."""

from __future__ import annotations

from typing import Any

import pytest

from tests.grpc_behaviour.sides import Side


@pytest.fixture(params=["grpc", "rifl"])
def side(request: Any) -> Side:
    """Bare gRPC, then ours."""
    return Side(request.param)
