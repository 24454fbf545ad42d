"""Types of protobuf messages, as a stream's schema has them: described, named, made."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError, Message

from rifl.spark._descriptors import collect_files, files_in_order, message_class
from sharedlog._core.stream_schema import StreamSchema

FORMAT = "protobuf"


def class_of(schema: StreamSchema) -> type[Message]:
    """Return the class of a stream's messages, in a pool of its own."""
    return message_class(schema.data, schema.name)


def from_module(name: str, message: str) -> StreamSchema:
    """Describe a message of a generated module such as ``shop.v1.shop_pb2``.

    Raises ``ValueError``.
    """
    try:
        module: Any = importlib.import_module(name)
        found = module.DESCRIPTOR.pool.FindMessageTypeByName(message)
    except ImportError as error:
        raise ValueError(f"the module {name!r} cannot be imported: {error}") from error
    except (AttributeError, KeyError) as error:
        raise ValueError(f"the module {name!r} has no message {message!r}") from error
    return _described(found)


def from_file(path: str, message: str) -> StreamSchema:
    """Describe a message of a descriptor set; raises ``ValueError``."""
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(path).read_bytes())
        for file in files_in_order(files.file):
            pool.Add(file)
        return _described(pool.FindMessageTypeByName(message))
    except OSError as error:
        raise ValueError(f"descriptorFile: {error}") from error
    except (DecodeError, TypeError) as error:
        raise ValueError(
            f"{path} is no whole descriptor set: protoc --include_imports "
            f"--descriptor_set_out=FILE makes one ({error})"
        ) from error
    except KeyError as error:
        raise ValueError(f"the descriptor file {path} has no message {message!r}") from error


def _described(descriptor: Any) -> StreamSchema:
    files = descriptor_pb2.FileDescriptorSet()
    collect_files((descriptor.file,), files, set())
    return StreamSchema(FORMAT, descriptor.full_name, files.SerializeToString(deterministic=True))
