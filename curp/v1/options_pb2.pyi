from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
CONFLICT_KEY_FIELD_NUMBER: _ClassVar[int]
conflict_key: _descriptor.FieldDescriptor
READ_ONLY_FIELD_NUMBER: _ClassVar[int]
read_only: _descriptor.FieldDescriptor
NONDETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
nondeterministic: _descriptor.FieldDescriptor
