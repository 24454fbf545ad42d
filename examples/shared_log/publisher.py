"""A publisher: ``python -m examples.shared_log.publisher URL NAME COUNT``.

It commits its transactions under its name in the log, one after the other. Killed and started
again, it asks the log how far it was: so each is committed once, with no notes of its own.
"""

from __future__ import annotations

import contextlib
import sys

import sharedlog
from examples.shared_log.work import PATIENCE, Work, work_of

__all__ = ["main"]


class _Failure(Exception):
    pass


def main() -> int:
    """Publish what is not in the log yet; 0 once all of it is."""
    url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with sharedlog.open(url, timeout=PATIENCE) as log:
        producer = log.producer(name)
        for seq in range(producer.last() + 1, count + 1):
            work = work_of(name, seq)
            if work.fails_first:
                with contextlib.suppress(_Failure):
                    _publish(producer, work, "never to be seen, ", fails=True)
            _publish(producer, work)
    return 0


def _publish(
    producer: sharedlog.Producer, work: Work, prefix: str = "", *, fails: bool = False
) -> None:
    with producer.transaction(seq=work.seq) as transaction:
        for message in work.messages:
            transaction.publish(message.stream, prefix + message.text, key=message.key)
        if fails:
            raise _Failure


if __name__ == "__main__":
    sys.exit(main())
