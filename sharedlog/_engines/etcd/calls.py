"""Calls of etcd's, made of keys and values, and what its refusals mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

import grpc

from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from sharedlog._engines.owner import Owner

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class Method(NamedTuple, Generic[_Request, _Response]):
    """A method of etcd's, and what goes there and comes back."""

    path: str
    request: type[_Request]
    response: type[_Response]


TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
RANGE = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
DELETE_RANGE = Method("/etcdserverpb.KV/DeleteRange", pb.DeleteRangeRequest, pb.DeleteRangeResponse)
COMPACT = Method("/etcdserverpb.KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
LEASE_GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_TIME_TO_LIVE = Method(
    "/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse
)
STATUS = Method("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
DEFRAGMENT = Method(
    "/etcdserverpb.Maintenance/Defragment", pb.DefragmentRequest, pb.DefragmentResponse
)
ALARM = Method("/etcdserverpb.Maintenance/Alarm", pb.AlarmRequest, pb.AlarmResponse)
AUTHENTICATE = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse
)
WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)

# Of the texts of its errors; the codes alone say too little.
_FULL = "database space exceeded"
_NEVER = ("request is too large", "too many operations", "duplicate key", "larger than max")
_CORRUPT = "corrupt"
_TOKENS = ("invalid auth token", "revision of auth store is old", "revision in header is old")
_PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def read_refusal(error: grpc.RpcError, server: str, owner: Owner) -> Exception:
    """Return what a call's failure means for its caller."""
    code, text = _code(error), _text(error)
    told = f"{server}: {text}"
    if _FULL in text:
        return owner.full(
            f"{told} (NOSPACE: it takes no writes until there is room and the alarm is "
            f"disarmed: see {owner.guide})"
        )
    if any(known in text for known in _NEVER):
        return owner.invalid(told)
    if code is grpc.StatusCode.DATA_LOSS or (_CORRUPT in text and "etcdserver" in text):
        return owner.corrupt(told)
    return owner.unavailable(f"{server} cannot be asked: {code.name}: {text}")


def may_be_better_elsewhere(error: grpc.RpcError) -> bool:
    """Whether another node, or the same later, may do what was refused."""
    text = _text(error)
    return _code(error) in _PASSING and not any(known in text for known in (_FULL, *_NEVER))


def wants_new_token(error: grpc.RpcError) -> bool:
    """Whether the call was refused, before anything was done, for its token's age alone."""
    return any(known in _text(error) for known in _TOKENS)


def get(key: bytes, *, revision: int = 0) -> pb.RequestOp:
    """Read one key, as of that revision (0: the newest; one that was compacted is refused)."""
    return pb.RequestOp(range=pb.RangeRequest(key=key, revision=revision))


def scan(first: bytes, end: bytes, limit: int, *, keys_only: bool = False) -> pb.RequestOp:
    """Read the keys from ``first`` to before ``end``, in order, so many of them (0: all)."""
    return pb.RequestOp(
        range=pb.RangeRequest(key=first, range_end=end, limit=limit, keys_only=keys_only)
    )


def put(key: bytes, value: bytes, *, lease: int = 0) -> pb.RequestOp:
    """Write a key, to go with the lease if one is given."""
    return pb.RequestOp(put=pb.PutRequest(key=key, value=value, lease=lease))


def delete(first: bytes, end: bytes = b"") -> pb.RequestOp:
    """Delete one key, or those from ``first`` to before ``end``."""
    return pb.RequestOp(delete_range=pb.DeleteRangeRequest(key=first, range_end=end))


def equal(key: bytes, value: bytes) -> pb.Compare:
    """Require that the key holds that value."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.VALUE, key=key, value=value)


def absent(key: bytes, end: bytes = b"") -> pb.Compare:
    """Require that there is no such key, or none from it to before ``end``."""
    return pb.Compare(target=pb.Compare.CREATE, key=key, range_end=end, create_revision=0)


def unchanged(key: bytes, revision: int) -> pb.Compare:
    """Require that the key was not written since that revision of it (0: there is none).

    A write that was delayed on its way is refused by it, once a later one was made.
    """
    return pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=revision)


def revision_of(found: pb.KeyValue | None) -> int:
    """Return by which revision a key was written last, 0 if there is no such key."""
    return 0 if found is None else found.mod_revision


def newest(responses: Iterable[pb.ResponseOp]) -> list[pb.KeyValue | None]:
    """Return what single keys were found to hold, in the order they were asked for."""
    return [one.range.kvs[0] if one.range.kvs else None for one in responses]


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    found = error.code() if isinstance(error, grpc.Call) else None
    return found or grpc.StatusCode.UNKNOWN


def _text(error: grpc.RpcError) -> str:
    return (error.details() if isinstance(error, grpc.Call) else None) or str(error)
