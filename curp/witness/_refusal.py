"""A refusal without a verdict, with rich error details (DESIGN §3)."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
import grpc.aio

from _rifl_ground.refusals import caller_text
from rifl._grpc.status import rich_status
from rifl.core._shared.errors import RiflError


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: RiflError) -> NoReturn:
    """End a call with a refusal."""
    status = rich_status(grpc.StatusCode[error.code_name], error.reason, caller_text(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
