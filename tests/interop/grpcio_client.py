"""A client written from docs/reference/protocol.md with grpcio and the standard library alone.

``grpcio_client.py TARGET HEADERS`` plays the scenario of ``scenario.py`` and prints
what it saw, one JSON object a line. It is a script: nothing of ours is imported.
"""

import json
import random
import struct
import sys
import threading
import time

import grpc

ATTEMPT_TIMEOUT_S = 10.0
MOST_ATTEMPTS = 20
RETRIED = {
    "IN_PROGRESS",
    "RECORD_PENDING",
    "DRAINING",
    "STORE_UNAVAILABLE",
    "OVERLOADED",
    "DEPOSED",
    "NOT_LEADER",
    "WINDOW_EXCEEDED",
}
# What transports and proxies answer, which says nothing about the call.
TRANSPORT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DATA_LOSS,
}
TRANSPORT_NUMBERS = {code.value[0] for code in TRANSPORT}
LEASES = "/lease_server.v1.LeaseServer/"
DEPOSIT = "/bank.v1.Bank/Deposit"
BALANCE = "/bank.v1.Bank/Balance"


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def encode(fields):
    """Encode {number: value}: int, bytes, ("fixed32" or "fixed64", int) or ("packed", ints).

    Not defaults.
    """
    out = b""
    for number, value in sorted(fields.items()):
        if isinstance(value, tuple) and value[0] in ("fixed32", "fixed64"):
            kind, code = (5, "<I") if value[0] == "fixed32" else (1, "<Q")
            if value[1]:
                out += varint(number << 3 | kind) + struct.pack(code, value[1])
            continue
        if isinstance(value, tuple):
            value = b"".join(varint(each) for each in value[1])
        if isinstance(value, bytes) and value:
            out += varint(number << 3 | 2) + varint(len(value)) + value
        elif value:
            out += varint(number << 3) + varint(value)
    return out


def decode(data):
    """Decode into {number: [values]}, whatever the fields are."""
    fields, at = {}, 0

    def number():
        nonlocal at
        result = shift = 0
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return result

    while at < len(data):
        tag = number()
        if tag & 7 == 0:
            value = number()
        elif tag & 7 == 1:
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        elif tag & 7 == 2:
            size = number()
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"wire type {tag & 7}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def field(fields, number, default=0):
    return fields.get(number, [default])[-1]


def header(
    client_id, token, *, seq=0, key=b"", first=0, completed=(), attempt=1, time_us=0, seed=0, **more
):
    return encode(
        {
            1: client_id,
            2: token,
            3: seq,
            4: key,
            5: first,
            6: ("packed", completed),
            7: attempt,
            8: ("fixed64", time_us),
            9: ("fixed64", seed),
            11: more.get("content_hash", b""),
            12: more.get("max_response_bytes", 0),
            13: more.get("received", 0),
            16: ("fixed32", more.get("try_ms", 0)),
        }
    )


def reason_of(trailing):
    """Return the reason of the ErrorInfo of domain "rifl", empty if there is none."""
    details = trailing.get("grpc-status-details-bin", b"")
    for packed in decode(details).get(3, []):
        detail = decode(packed)
        if field(detail, 1, b"").endswith(b"/google.rpc.ErrorInfo"):
            info = decode(field(detail, 2, b""))
            if field(info, 2, b"") == b"rifl":
                return field(info, 1, b"").decode()
    return ""


def deposit_request(reference, cents=500):
    return encode({1: reference.encode(), 2: b"alice", 3: cents})


class Client:
    def __init__(self, target):
        self.channel = grpc.insecure_channel(target, options=[("grpc.enable_retries", 0)])
        asked = time.monotonic()
        grant = decode(self.ask("Grant", b""))
        self.client_id, self.token = field(grant, 1), field(grant, 2, b"")
        self.term_ms, self.heartbeat = field(grant, 3), field(grant, 4)
        self.lease_ends = asked + self.term_ms / 1000
        self.deduplicated = [pattern.decode() for pattern in grant.get(5, [])]
        self.window = field(grant, 7)

    def ask(self, method, request):
        call = self.channel.unary_unary(LEASES + method)
        return call(request, timeout=ATTEMPT_TIMEOUT_S, wait_for_ready=True)

    def once(self, method, request, attempt=1, **identity):
        """One attempt, and what came back."""
        identity.setdefault("client_id", self.client_id)
        identity.setdefault("token", self.token)
        entry = ("rifl-bin", header(attempt=attempt, **identity))
        return self.send(method, request, entry, attempt)

    def send(self, method, request, entry, attempt):
        call = self.channel.unary_unary(method).future(
            request, timeout=ATTEMPT_TIMEOUT_S, metadata=(entry,), wait_for_ready=True
        )
        failed = call.exception() is not None
        trailing = dict(call.trailing_metadata() or ())
        response = decode(b"" if failed else call.result())
        return {
            "code": call.code().value[0],
            "reason": reason_of(trailing),
            "outcome": trailing.get("rifl-outcome", ""),
            "attempts": attempt,
            "answer": [field(response, 1), field(response, 2)],
        }

    def call(self, method, request, **identity):
        """All attempts, under one identity and one stamp."""
        identity |= {"time_us": time.time_ns() // 1000, "seed": random.getrandbits(64)}
        for attempt in range(1, MOST_ATTEMPTS + 1):
            seen = self.once(method, request, attempt, **identity)
            silent = attempt > 1 and not seen["outcome"]
            transport = seen["code"] in TRANSPORT_NUMBERS and not seen["outcome"]
            if seen["reason"] not in RETRIED and not transport:
                if silent:
                    raise SystemExit("answered by a server that does not deduplicate")
                return seen
            threading.Event().wait(random.uniform(0, 0.05 * 2 ** min(attempt, 6)))
        raise SystemExit(f"no answer in {MOST_ATTEMPTS} attempts: {seen}")

    def heartbeat_once(self, first):
        request = encode({1: self.client_id, 2: self.token, 5: first})
        if self.heartbeat == 2:
            stream = self.channel.stream_stream(LEASES + "KeepAlive")
            reply = next(stream(iter([request]), timeout=ATTEMPT_TIMEOUT_S))
        else:
            reply = self.ask("Renew", request)
        reply = decode(reply)
        return {
            "client_id": field(reply, 1) == self.client_id,
            "term_ms": field(reply, 2),
            "refused": field(reply, 4, b"").decode(),
        }

    def resolve(self, seq):
        call = self.channel.unary_unary("/rifl.v1.Outcomes/Resolve")
        request = encode({1: self.client_id, 2: self.token, 3: seq})
        return field(decode(call(request, timeout=ATTEMPT_TIMEOUT_S)), 1)


def check_vectors(path):
    with open(path) as file:
        vectors = json.load(file)["valid"]
    for vector in vectors:
        fields = dict(vector["header"])
        for name in ("token", "key", "content_hash"):
            if name in fields:
                fields[name] = bytes.fromhex(fields[name])
        for name in ("client_id", "seq", "first_incomplete", "time_us", "seed"):
            if name in fields:
                fields[name] = int(fields[name])
        fields["first"] = fields.pop("first_incomplete", 0)
        made = header(fields.pop("client_id"), completed=vector["completed"], **fields)
        if made.hex() != vector["wire"]:
            raise SystemExit(f"{vector['name']}: {made.hex()}, not {vector['wire']}")
    return len(vectors)


def tell(step, **seen):
    print(json.dumps({"step": step, **seen}), flush=True)


def main(target, headers):
    tell("vectors", count=check_vectors(headers))
    client = Client(target)
    tell(
        "granted",
        term_ms=client.term_ms,
        window=client.window,
        deduplicated=client.deduplicated,
        heartbeat=client.heartbeat,
    )
    for seq in range(1, 7):
        # The even ones lose their first answers; see scenario.py.
        name = f"lost-{seq}" if seq % 2 == 0 else f"paid-{seq}"
        tell(f"paid-{seq}", **client.call(DEPOSIT, deposit_request(name), seq=seq, first=seq))
    # Acknowledgements never go back, but they need not move: 6 is still wanted.
    tell("again", **client.once(DEPOSIT, deposit_request("lost-6"), 9, seq=6, first=6))
    tell("other-payload", **client.once(DEPOSIT, deposit_request("x", 7), 10, seq=6, first=6))
    stranger = b"\0" * len(client.token)
    tell(
        "wrong-token", **client.once(DEPOSIT, deposit_request("y"), seq=7, first=6, token=stranger)
    )
    tell("renewed", **client.heartbeat_once(6))
    refused = encode({1: b"z", 2: b"nobody", 3: 1})
    tell("refused", **client.call(DEPOSIT, refused, seq=7, first=6))
    # 6 is still wanted, 7 is not.
    ranges = {"first": 6, "completed": (1, 1)}
    tell("balance", **client.call(BALANCE, encode({1: b"alice"}), seq=8, **ranges))
    tell("stale", **client.once(DEPOSIT, refused, 2, seq=7, first=6))
    tell("kept", **client.once(DEPOSIT, deposit_request("lost-6"), 11, seq=6, first=6))
    tell("resolved", outcome=client.resolve(9))
    tell("too-late", **client.once(DEPOSIT, deposit_request("late"), seq=9, first=8))
    # From now on no answer up to the eighth is wanted: told without a call.
    client.heartbeat_once(9)
    tell("freed", **client.once(BALANCE, encode({1: b"alice"}), 2, seq=8, first=6))
    secret = b"sixteen bytes or more"
    session = decode(client.ask("OpenSession", encode({1: b"orders", 2: 3_600_000, 3: secret})))
    owner = {"client_id": field(session, 1), "token": field(session, 2, b"")}
    for step in ("keyed", "keyed-again"):
        tell(step, **client.call(DEPOSIT, deposit_request("lost-key"), key=b"order-17", **owner))
    client.ask("CloseSession", encode({1: b"orders", 2: secret}))
    tell("closed", **client.once(DEPOSIT, deposit_request("late"), key=b"order-18", **owner))
    client.ask("Release", encode({1: client.client_id, 2: client.token}))
    tell("released", **client.once(DEPOSIT, deposit_request("late"), seq=10, first=8))
    plain = ("idempotency-key", "invoice 12")
    for step in ("plain-key", "plain-key-again"):
        tell(step, **client.send(DEPOSIT, deposit_request("invoice"), plain, 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
