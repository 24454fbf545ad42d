"""gRPC's own services, where ours have them."""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.threats.case import Case

__all__ = ["HEALTH", "REFLECTION"]

HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"


class Check(Case, of=f"{HEALTH}/Check"):
    """Whether new calls are taken."""

    def request(self) -> Any:
        return health_pb2.HealthCheckRequest()

    def check(self, reply: Any, before: Any, after: Any) -> None:
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


class Watch(Check, of=f"{HEALTH}/Watch"):
    """The same, as it changes."""


class Reflection(Case):
    """What is served."""

    def request(self) -> Any:
        return reflection_pb2.ServerReflectionRequest(list_services="")

    def check(self, reply: Any, before: Any, after: Any) -> None:
        found = {each.name for each in reply.list_services_response.service}
        assert self.stage.serves & found


class OfGroup(Reflection, of=f"{REFLECTION}/ServerReflectionInfo", use="of a group"):
    """Behind its token."""

    at = ("group",)


class OfLog(Reflection, of=f"{REFLECTION}/ServerReflectionInfo", use="of a log"):
    """For accepted callers."""

    at = ("log",)
