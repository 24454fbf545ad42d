"""The balances in Redis: ``python -m examples.payments.balances LOG REDIS``.

A script adds what a message says, and notes through where its substream is in the view: what comes
again, after a kill, is added once.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import redis

import sharedlog
from examples.payments.executor import PATIENCE
from examples.payments.rules import ACCOUNTS
from examples.payments.views import lines_of

__all__ = ["NAME", "main"]

NAME = "balances"
_RETRY_S = 0.1
# KEYS: balances, places. ARGV: substream, LSN, ordinal, then accounts and cents.
_ADD = """
local place = redis.call('HGET', KEYS[2], ARGV[1])
if place then
  local lsn, ordinal = string.match(place, '(%d+) (%d+)')
  lsn, ordinal = tonumber(lsn), tonumber(ordinal)
  if tonumber(ARGV[2]) < lsn or (tonumber(ARGV[2]) == lsn and tonumber(ARGV[3]) <= ordinal) then
    return
  end
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
for at = 4, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[at], ARGV[at + 1])
end
"""


def main(log_url: str, redis_url: str) -> None:
    """Keep the balances until standard input closes."""
    closing = threading.Event()
    with (
        sharedlog.open(log_url, timeout=PATIENCE) as log,
        redis.Redis.from_url(redis_url, socket_timeout=5) as client,
        log.follow(ACCOUNTS, name=NAME) as following,
    ):
        threading.Thread(target=_read_to_end, args=(closing,), daemon=True).start()
        print("listening 0", flush=True)
        while not closing.is_set():
            if messages := following.poll(0.2):
                while not _added(client, messages):
                    closing.wait(_RETRY_S)
                following.done(messages[-1])


def _added(client: Any, messages: list[sharedlog.Message]) -> bool:
    """Add what messages say; False if Redis does not answer: then it is done once more."""
    pipeline = client.pipeline(transaction=False)
    add = client.register_script(_ADD)
    for message in messages:
        at = message.position
        said = [
            each
            for account, _, _, cents, _, _ in lines_of(json.loads(message.value))
            for each in (account, cents)
        ]
        if said:
            place = [message.substream, at.lsn, at.ordinal]
            add(("balances", "places"), [*place, *said], client=pipeline)
    try:
        pipeline.execute()
    except redis.ConnectionError:
        return False
    return True


def _read_to_end(closing: threading.Event) -> None:
    sys.stdin.read()
    closing.set()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
