"""Arguments of any kind: a call succeeds or refuses them by type, at once (DESIGN-LOG §12)."""

import asyncio
import inspect
import io
import itertools
import math
import secrets
import sqlite3
from contextlib import ExitStack, closing, suppress
from datetime import date, timedelta

import pytest

import sharedlog
import sharedlog.aio
from sharedlog._cli import ExitCode, main
from sharedlog._service.settings import ServerLimits, ServerSettings
from tests.sharedlog.served import served

HOSTILE = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -1,
    "huge": 1 << 70,
    "half": 1.5,
    "one": 1.0,
    "nan": math.nan,
    "inf": math.inf,
    "empty": "",
    "surrogate": "\udc80",
    "surrogates": "s\ud800",
    "null": "\0",
    "long": "x" * 2000,
    "text": "no such thing",
    "bytes": b"\xff",
    "array": bytearray(b"x"),
    "list": [],
    "listed": [[], None],
    "truths": [True],
    "numbers": (-1, 1 << 70),
    "mapping": {},
    "mapped": {None: None},
    "texts": {"a": "\udc80", "b": 5},
    "time": timedelta(seconds=-1),
    "longest": timedelta.max,
    "date": date(2026, 1, 1),
    "object": object(),
    "class": int,
    "fence": sharedlog.Fence("f", -1),
    "fences": sharedlog.Fence("f", True),
    "fenced": sharedlog.Fence("\udc80", 1.5),
    "stream": sharedlog.Stream(None, None, None),
    "unhashable": sharedlog.Stream([], 1, timedelta(1)),
    "position": sharedlog.Position(1, 0, 0, "elsewhere", 0),
    "half a position": sharedlog.Position(1.5, "0", None, None, True),
    "about": sharedlog.About(content_type=5),
    "said": sharedlog.About(trace_parent=0),
    "when": sharedlog.About(event_time_us=1.5),
    "truly": sharedlog.About(event_time_us=True),
    "heads": sharedlog.About(headers=5),
    "headed": sharedlog.About(headers={"a b": b"", "é": "x"}),
    "traced": sharedlog.About(trace_state="\udc80"),
    "called": sharedlog.About(method=5),
    "unknown": sharedlog.AppendUnknown("what", None),
}
# What is told of a value of the right type: that there is no such thing.
TYPED = (
    sharedlog.InvalidRequest,
    sharedlog.NoSuchStream,
    sharedlog.NoSuchOutbox,
    sharedlog.UnknownProducer,
    sharedlog.LogForked,
    sharedlog.WrongTransaction,
    sharedlog.Fenced,
    sharedlog.NoSuchLog,
)
DAY = timedelta(days=1)
UNBOUNDED = ServerSettings(limits=ServerLimits(caller_steps_per_s=0))
MESSAGE = {"stream": "s", "value": b"v", "key": b"k", "headers": {"h": b"v"}, "about": None}


async def published_in(log, **arguments):
    """In a transaction of a producer."""
    transaction = log.producer().transaction()
    if isinstance(log, sharedlog.Log):
        with transaction as begun:
            begun.publish(**arguments)
    else:
        async with transaction as begun:
            await begun.publish(**arguments)


async def transaction_of(log, **arguments):
    """Of a named producer, begun and rolled back."""
    transaction = log.producer("p").transaction(**arguments)
    with suppress(ZeroDivisionError):
        if isinstance(log, sharedlog.Log):
            with transaction:
                raise ZeroDivisionError
        async with transaction:
            raise ZeroDivisionError


async def followed(log, **arguments):
    """Begun."""
    if isinstance(log, sharedlog.Log):
        with log.follow(**arguments) as following:
            following.poll()
    else:
        async with log.follow(**arguments):
            pass


async def done(log, **arguments):
    """Of a follower with a name."""
    if isinstance(log, sharedlog.Log):
        with log.follow("s", name="me") as following:
            following.done(**arguments)
    else:
        async with log.follow("s", name="me") as following:
            await following.done(**arguments)


async def polled(log, **arguments):
    """With something to read."""
    if isinstance(log, sharedlog.Log):
        with log.follow("s") as following:
            following.poll(**arguments)


async def rounds(log, *, every, retention, told):
    """Made and closed."""
    made = log.trim_every(every, retention, told)
    if inspect.isawaitable(found := made.close()):
        await found


async def put(log, *, to, name, **arguments):
    """Into an outbox of an application's."""
    module = sharedlog if isinstance(log, sharedlog.Log) else sharedlog.aio
    with closing(sqlite3.connect(":memory:")) as connection:
        made = module.create_outbox(connection, log if to is ... else to, name)
        if inspect.isawaitable(made):
            await made
        found = module.outbox(connection, log, name).publish(**arguments)
        if inspect.isawaitable(found):
            await found


async def joined(log, **arguments):
    """In a transaction of the application's."""
    with closing(sqlite3.connect(":memory:")) as own:
        given = arguments.pop("connection")
        found = log.append_in(own if given is ... else given, **arguments)
        if inspect.isawaitable(found):
            await found


async def opened(log, **arguments):
    """Or made."""
    module = sharedlog if isinstance(log, sharedlog.Log) else sharedlog.aio
    for door in (module.open, module.create):
        given = {name: value for name, value in arguments.items() if name != "incarnation"}
        found = door(**(arguments if door is module.open else given))
        found = await found if inspect.isawaitable(found) else found
        if inspect.isawaitable(closed := found.close()):
            await closed


def method(name):
    """Of a log."""

    async def call(log, **arguments):
        found = getattr(log, name)(**arguments)
        return await found if inspect.isawaitable(found) else found

    return call


CALLS = {
    "open": (
        opened,
        {
            "url": "memory:nowhere",
            "incarnation": None,
            "timeout": DAY,
            "observer": None,
            "seal": None,
            "unseal": None,
        },
    ),
    "stream": (method("stream"), {"name": "s", "substreams": 2, "retention": DAY}),
    "publish": (method("publish"), MESSAGE),
    "publish_call": (
        method("publish_call"),
        {"method": "/a.B/C", "request": b"v"}
        | {name: value for name, value in MESSAGE.items() if name != "value"},
    ),
    "append_in": (joined, {"connection": ..., **MESSAGE, "fence": None}),
    "settle": (method("settle"), {"unknown": None}),
    "producer": (method("producer"), {"name": "p", "fence": None}),
    "transaction": (transaction_of, {"seq": 1, "follows": 0}),
    "publish in a transaction": (published_in, MESSAGE),
    "raise_fence": (method("raise_fence"), {"name": "f"}),
    "retire": (method("retire"), {"producer": 1 << 40}),
    "forget": (method("forget"), {"name": "nobody"}),
    "follow": (
        followed,
        {"stream": "s", "substreams": None, "after": None, "committed": True, "name": None},
    ),
    "done": (done, {"place": None}),
    "poll": (polled, {"timeout_s": 0.0}),
    "read": (method("read"), {"stream": "s", "substream": 0, "after": None, "limit": 1}),
    "holds": (method("holds"), {"name": "nobody"}),
    "drop_hold": (method("drop_hold"), {"name": "nobody"}),
    "forget_hold": (method("forget_hold"), {"name": "nobody"}),
    "trim": (method("trim"), {"retention": DAY}),
    "trim_every": (rounds, {"every": DAY, "retention": DAY, "told": None}),
    "sweeper": (method("sweeper"), {"silent": DAY}),
    "outbox": (put, {"to": ..., "name": "outbox", **MESSAGE}),
}


@pytest.fixture(scope="module")
def logs():
    """One log, itself and over gRPC, each sync and aio: what waits for an answer fails at once."""

    async def opened_aio(url):
        return await sharedlog.aio.open(url)

    def waited(_):
        pytest.fail("what cannot be is asked again")

    with ExitStack() as ending:
        url = f"memory:{secrets.token_hex(8)}"
        log = ending.enter_context(sharedlog.create(url))
        log.stream("s", 2)
        for text in "ab":
            log.publish("s", text)
        remote = f"grpc://{ending.enter_context(served(log, settings=UNBOUNDED)).address}"
        loop = ending.enter_context(asyncio.Runner())
        found = {"sync": log, "sync grpc": ending.enter_context(sharedlog.open(remote))}
        for name, where in (("aio", url), ("aio grpc", remote)):
            found[name] = loop.run(opened_aio(where))
            ending.callback(lambda each=found[name]: loop.run(each.close()))
        for name in ("sync grpc", "aio", "aio grpc"):
            inner = getattr(found[name], "_inner", found[name])
            inner._place.closing.wait = waited
        yield loop, found


@pytest.mark.parametrize("where", ["sync", "aio", "sync grpc", "aio grpc"])
@pytest.mark.parametrize("call", CALLS)
def test_an_argument_of_any_kind_is_taken_or_refused_by_type(logs, where, call):
    """And nothing of what is refused is in the log, nor asked for again (L3)."""
    loop, found = logs
    act, good = CALLS[call]
    wrong = []
    for parameter, (name, value) in itertools.product(good, HOSTILE.items()):
        try:
            loop.run(act(found[where], **(good | {parameter: value})))
        except TYPED as error:
            if error.appended is not False:
                wrong.append((parameter, name, repr(error)))
        except Exception as error:  # noqa: BLE001 - which ones come is the question
            wrong.append((parameter, name, repr(error)))
    assert wrong == []


def test_a_relay_takes_its_arguments_or_refuses_them_by_type(logs, tmp_path):
    """Before it begins (§12)."""
    _, found = logs
    good = {
        "database": f"sqlite:///{tmp_path / 'app.db'}",
        "log": found["sync"],
        "name": "o",
        "told": None,
    }
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        sharedlog.create_outbox(connection, found["sync"], "o")
    for parameter, value in itertools.product(good, HOSTILE.values()):
        with suppress(*TYPED):
            sharedlog.relay(**(good | {parameter: value})).close()


@pytest.mark.parametrize(
    "wrong", [{"substreams": [True]}, {"substreams": True}, {"name": "\udc80"}]
)
def test_a_truth_is_no_number_and_half_a_character_no_name(logs, wrong):
    """They are refused, and not taken for something else (L6)."""
    for log in (logs[1]["sync"], logs[1]["sync grpc"]):
        with pytest.raises(sharedlog.InvalidRequest):
            log.follow("s", **wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tail", "URL", "s", "-n", "-1"],
        ["tail", "URL", "s", "-n", "1.5"],
        ["read", "URL", "s", "--limit", "0"],
        ["read", "URL", "s", "--limit", "-3"],
        ["read", "URL", "s", "--substream", "-1"],
        ["read", "URL", "s", "--substream", "2"],
        ["read", "URL", "s", "--after", "99999999999999d"],
        ["streams", "URL", "--create", "t", "--substreams", "0"],
        ["streams", "URL", "--create", "\udc80"],
        ["trim", "URL", "--every", "0"],
        ["trim", "URL", "--retention", "99999999999999d"],
        ["defragment", "URL", "--every", "0s"],
        ["publish", "URL", "s", "\udc80"],
        ["publish", "URL", "s", "v", "--key", "\udc80"],
        ["publish", "URL", "s", "v", "--header", "h=\udc80"],
        ["retire", "URL", "0", "--yes"],
        ["retire", "URL", f"{1 << 70}", "--yes"],
        ["forget", "URL", "\udc80", "--yes"],
        ["holds", "URL", "--drop", "\udc80", "--yes"],
        ["create", "sqlite:///\0"],
    ],
)
def test_the_command_refuses_what_cannot_be(logs, arguments, capsys):
    """With one line, and 2, before anything is done."""
    _, found = logs
    given = [found["sync"]._url if each == "URL" else each for each in arguments]
    try:
        code = main(given)
    except SystemExit as ended:
        code = ended.code
    assert code == ExitCode.USAGE
    assert capsys.readouterr().err


def test_what_is_no_text_on_standard_input_is_refused(logs, monkeypatch, capsys):
    """Lines before it are published (issue 17)."""
    _, found = logs
    lines = io.TextIOWrapper(io.BytesIO(b"one\n\xff\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", lines)
    assert main(["publish", found["sync"]._url, "s"]) == ExitCode.USAGE
    assert "UTF-8" in capsys.readouterr().err
