import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Ride(_message.Message):
    __slots__ = ("id", "rider", "ended", "cents")
    ID_FIELD_NUMBER: _ClassVar[int]
    RIDER_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    CENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    rider: str
    ended: _timestamp_pb2.Timestamp
    cents: int
    def __init__(self, id: _Optional[str] = ..., rider: _Optional[str] = ..., ended: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cents: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("cents",)
    CENTS_FIELD_NUMBER: _ClassVar[int]
    cents: int
    def __init__(self, cents: _Optional[int] = ...) -> None: ...

class Bill(_message.Message):
    __slots__ = ("rider", "hour", "rides", "cents")
    RIDER_FIELD_NUMBER: _ClassVar[int]
    HOUR_FIELD_NUMBER: _ClassVar[int]
    RIDES_FIELD_NUMBER: _ClassVar[int]
    CENTS_FIELD_NUMBER: _ClassVar[int]
    rider: str
    hour: _timestamp_pb2.Timestamp
    rides: int
    cents: int
    def __init__(self, rider: _Optional[str] = ..., hour: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rides: _Optional[int] = ..., cents: _Optional[int] = ...) -> None: ...

class Charged(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
