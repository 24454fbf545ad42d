"""A channel's session opens by the secret it is given, or finds (DESIGN §5)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest

import rifl
import rifl.aio
from rifl._client.session_secret import FILE_VARIABLE, VARIABLE, find_session_secrets
from rifl.core._shared.errors import NotYours, RiflError
from tests.helpers.servers import generic, serve

METHOD = "/p.S/M"
MINE, OTHERS = "my secret, drawn at random", "another's, drawn at random"
NEW = "my new secret, at random"
Secret = str | Sequence[str | bytes] | None


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """A real server that takes nobody at his word."""
    runs: list[bytes] = []

    def behavior(request: bytes, _: grpc.ServicerContext) -> bytes:
        runs.append(request)
        return b"%d" % len(runs)

    with (
        rifl.Deduplicator("memory:") as dedup,
        serve("sync", [generic("p.S", {"M": behavior})], dedup=dedup) as served,
    ):
        yield served.address


def call(target: str, session: str, secret: Secret) -> bytes:
    with rifl.connect(target, session=session, secret=secret) as channel:
        answer: bytes = channel.unary_unary(METHOD)(
            b"x", timeout=20, metadata=[rifl.key("one and the same")]
        )
        return answer


def call_async(target: str, session: str, secret: Secret) -> bytes:
    async def work() -> bytes:
        async with rifl.aio.connect(target, session=session, secret=secret) as channel:
            answer: bytes = await channel.unary_unary(METHOD)(
                b"x", timeout=20, metadata=[rifl.key("one and the same")]
            )
            return answer

    return asyncio.run(work())


@pytest.mark.parametrize("ask", [call, call_async])
def test_another_secret_and_none_get_nothing(
    target: str, ask: Callable[[str, str, Secret], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has the secret gets the first answer again, anybody else NotYours (§5)."""
    name = f"job of {ask.__name__}"
    monkeypatch.delenv(VARIABLE)
    first = ask(target, name, MINE)
    assert ask(target, name, MINE) == first
    for secret in (OTHERS, None):
        with pytest.raises(RiflError) as error:
            ask(target, name, secret)
        assert isinstance(error.value, NotYours)


def test_closing_needs_the_secret(target: str) -> None:
    """A session is not ended by who knows its name (§5)."""
    first = call(target, "to be closed", MINE)
    with rifl.connect(target, session="to be closed", secret=OTHERS) as channel:
        with pytest.raises(RiflError) as error:
            channel.session.close(timeout=10)
        assert isinstance(error.value, NotYours)
    assert call(target, "to be closed", MINE) == first


@pytest.mark.parametrize("ask", [call, call_async])
def test_a_leaked_secret_is_replaced_while_the_service_runs(
    target: str, ask: Callable[[str, str, Secret], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes take both, the new one first, then the new one alone: none is refused (§5)."""
    name = f"rotated by {ask.__name__}"
    monkeypatch.delenv(VARIABLE)
    first = ask(target, name, MINE)
    for secrets in ([MINE, NEW], (NEW.encode(), MINE), [NEW], NEW):
        assert ask(target, name, secrets) == first
    with pytest.raises(RiflError) as error:
        ask(target, name, MINE)
    assert isinstance(error.value, NotYours)
    with rifl.connect(target, session=name, secret=[OTHERS, NEW]) as channel:
        channel.session.close(timeout=20)
    with pytest.raises(rifl.CallError) as over:
        ask(target, name, OTHERS)
    assert over.value.reason == "SESSION_CLOSED"


def test_the_environment_gives_the_secret(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that are given no argument take a variable's, or that of the file it names."""
    first = call(target, "of workers", MINE)
    monkeypatch.setenv(VARIABLE, MINE)
    assert call(target, "of workers", None) == first
    monkeypatch.delenv(VARIABLE)
    (tmp_path / "secret").write_text(MINE + "\n")
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "secret"))
    assert call(target, "of workers", None) == first
    assert find_session_secrets(b"given, and so it counts") == (b"given, and so it counts",)
    # A line has one: the new one first.
    (tmp_path / "secret").write_text(f"{NEW}\n\n  {MINE} \r\n")
    assert find_session_secrets() == (NEW.encode(), MINE.encode())
    monkeypatch.delenv(FILE_VARIABLE)
    monkeypatch.setenv(VARIABLE, f"{NEW}\n{MINE}")
    assert find_session_secrets() == (NEW.encode(), MINE.encode())


def test_a_secret_that_cannot_be_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too short, unreadable, two at once, without a session: ValueError, and no secret in it."""
    for given in ("short", b"x" * 1025, [MINE, "short"]):
        with pytest.raises(ValueError, match="16 to 1024 bytes") as error:
            rifl.connect("127.0.0.1:1", session="s", secret=given)
        assert str(given) not in str(error.value)
        assert "short" not in str(error.value)
    for empty_or_many, why in (([], "empty list"), ([MINE] * 5, "at most 4")):
        with pytest.raises(ValueError, match=why):
            rifl.connect("127.0.0.1:1", session="s", secret=empty_or_many)
    with pytest.raises(ValueError, match="belongs to a session"):
        rifl.connect("127.0.0.1:1", secret=MINE)
    with pytest.raises(ValueError, match="no NUL"):
        rifl.connect("127.0.0.1:1", session="a\0b")
    with pytest.raises(TypeError):
        rifl.connect("127.0.0.1:1", session="s", secret=32)  # type: ignore[arg-type]
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ValueError, match="only one"):
        rifl.connect("127.0.0.1:1", session="s")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(ValueError, match="No such file"):
        rifl.connect("127.0.0.1:1", session="s")
    (tmp_path / "none").touch()
    with pytest.raises(ValueError, match="is empty"):
        rifl.connect("127.0.0.1:1", session="s")
    monkeypatch.delenv(FILE_VARIABLE)
    monkeypatch.setenv(VARIABLE, " \n")
    with pytest.raises(ValueError, match="is empty"):
        rifl.connect("127.0.0.1:1", session="s")


def test_settings_do_not_show_the_secret() -> None:
    """What is logged of a channel gives nothing away (§9)."""
    with rifl.connect("127.0.0.1:1", session="s", secret=[MINE, NEW]) as channel:
        shown = repr(channel._client.settings)
    assert (MINE in shown, NEW in shown) == (False, False)


def test_a_secret_that_is_no_text_stands_for_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the environment may hold any bytes; no error holds what it holds (§5)."""
    drawn = bytes(range(128, 160))
    monkeypatch.setenv(VARIABLE, os.fsdecode(drawn))
    assert find_session_secrets() == (drawn,)
    with pytest.raises(ValueError, match="text in UTF-8, or bytes") as error:
        find_session_secrets("only mine " + "\ud800" * 16)
    assert "only mine" not in repr(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


@pytest.mark.parametrize("connect", [rifl.connect, rifl.aio.connect])
def test_a_name_that_no_message_carries_is_refused_at_once(connect: Callable[..., object]) -> None:
    """On a loop its calls waited for their deadlines; elsewhere the channel passed for closed."""
    with pytest.raises(ValueError, match="text in UTF-8"):
        connect("127.0.0.1:1", session="part of a file name: \udce4", secret=MINE)
