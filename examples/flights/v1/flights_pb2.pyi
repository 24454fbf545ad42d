import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Flight(_message.Message):
    __slots__ = ("departs", "carrier", "number", "origin", "dest", "miles", "delay")
    DEPARTS_FIELD_NUMBER: _ClassVar[int]
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    DEST_FIELD_NUMBER: _ClassVar[int]
    MILES_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    departs: _timestamp_pb2.Timestamp
    carrier: str
    number: int
    origin: str
    dest: str
    miles: int
    delay: float
    def __init__(self, departs: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., carrier: _Optional[str] = ..., number: _Optional[int] = ..., origin: _Optional[str] = ..., dest: _Optional[str] = ..., miles: _Optional[int] = ..., delay: _Optional[float] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("entry",)
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: int
    def __init__(self, entry: _Optional[int] = ...) -> None: ...

class TotalsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TotalsReply(_message.Message):
    __slots__ = ("entries", "flights", "miles")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FLIGHTS_FIELD_NUMBER: _ClassVar[int]
    MILES_FIELD_NUMBER: _ClassVar[int]
    entries: int
    flights: int
    miles: int
    def __init__(self, entries: _Optional[int] = ..., flights: _Optional[int] = ..., miles: _Optional[int] = ...) -> None: ...
