"""Policies that a group can honour (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Mapping

from curp._replica.group_service import SERVICE as GROUP
from rifl._server.outcomes_service import SERVICE as OUTCOMES
from rifl.core._serving.policy import Kind, MethodPolicies, MethodPolicy, PolicyError

# Served by every replica by itself.
_NEVER = {
    "/lease_server.v1.LeaseServer/*": None,
    f"/{OUTCOMES}/*": None,
    f"/{GROUP}/*": None,
    "/grpc.health.v1.Health/*": None,
    "/grpc.reflection.v1alpha.ServerReflection/*": None,
}


def group_policies(
    methods: Mapping[str, MethodPolicy | Kind | str | None] | None,
) -> MethodPolicies:
    """Return the policies; raises ``PolicyError`` for one that cannot be honoured."""
    policies = MethodPolicies({**_NEVER, **(methods or {})}, MethodPolicy(required=True))
    for policy in policies:
        if policy.kind is Kind.ATOMIC:
            raise PolicyError("an atomic method has a database of its own, and a group has its log")
        if policy.unrecorded:
            # A later leader may run what is on a witness: it must find an answer (13).
            raise PolicyError("in a group every answer is recorded: unrecorded cannot be honoured")
        if policy.batch_concurrency > 1:
            raise PolicyError(
                "in a group a batch's calls run in its order, which is the log's: "
                "batch_concurrency cannot be honoured"
            )
    return policies
