"""A writer on a bad disk: ``python -m tests.curp.log.faulty URL full|sync``.

Appends once; then the disk is full (files grow no more) or does not sync any more. It
prints what became of the next appends: the name of the error, or the new tail.
"""

from __future__ import annotations

import resource
import sys

from curp.log import open_engine
from curp.log._errors import LogError
from tests.curp.log.conformance import Writer
from tests.faults import syscalls


def main() -> None:
    """Append before, during and, where it can end, after the fault."""
    url, fault = sys.argv[1:]
    writer = Writer(open_engine(url))
    writer.append(b"before")

    def attempt(body: bytes, **more: object) -> None:
        try:
            sys.stdout.write(f"{writer.append(body, **more)}\n")
        except LogError as error:
            sys.stdout.write(f"{type(error).__name__}\n")

    name = b"0123456789abcdef"
    if fault == "full":
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
        attempt(b"during", append_id=name)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    else:
        syscalls.fail_fsync()
        attempt(b"during", append_id=name)
    attempt(b"during", append_id=name)
    attempt(b"after")


if __name__ == "__main__":
    main()
