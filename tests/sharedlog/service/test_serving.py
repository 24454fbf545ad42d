"""A log is served until it is told to stop, to whom it is to be (DESIGN-LOG §12, L8, issue 17)."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from datetime import timedelta

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

import sharedlog
import sharedlog.aio
from sharedlog._cli import ExitCode, main
from sharedlog._core.errors import LogFull, LogUnavailable
from sharedlog._service.settings import (
    AccessRule,
    BadSettings,
    ServerLimits,
    ServerSettings,
    read_settings,
    read_tokens,
)
from tests.helpers.ports import free_port
from tests.helpers.processes import started
from tests.helpers.waiting import until
from tests.sharedlog.served import served


def test_a_server_that_restarts_loses_and_doubles_nothing(behind):
    """Appends are sent again, followers go on where they were, all in one handle (L3, C4)."""
    behind.stream("s", 4)
    count, step = 60, 15
    with (
        served(behind) as server,
        sharedlog.open(f"grpc://{server.address}") as log,
        log.follow("s", name="me") as following,
    ):
        placed = []

        def publish():
            placed.extend(log.publish("s", f"{each}") for each in range(count))

        publisher = threading.Thread(target=publish)
        publisher.start()
        found = []
        for stop_at in range(step, count, step):
            found += itertools.islice(following, stop_at - len(found))
            server.stop()
            server.start()
        found += itertools.islice(following, count - len(found))
        following.done(found[-1])
        publisher.join(30)
    assert [each.position for each in found] == placed
    assert [int(each.text) for each in found] == list(range(count))
    assert max(each.lsn for each in behind.holds("me")) == count


def test_a_named_follower_begins_at_a_position_that_its_user_keeps(url, behind):
    """Also over gRPC, where it goes on by itself after a break (L6)."""
    behind.stream("s", 2)
    placed = [behind.publish("s", f"{each}") for each in range(10)]
    with sharedlog.open(url) as log:
        with log.follow("s", name="me") as following:
            following.done(list(itertools.islice(following, 6))[-1])
        for first in (3, 8):
            with log.follow("s", name="me", after=placed[first - 1]) as following:
                assert [int(each.text) for each in following.poll(10)] == list(range(first, 10))


def test_tasks_publish_and_follow_a_served_log(url, behind):
    """``sharedlog.aio.open`` is the same, too (issue 17)."""

    async def play():
        async with await sharedlog.aio.open(url) as log:
            placed = await asyncio.gather(*(log.publish("s", f"{each}") for each in range(20)))
            async with log.producer("relay").transaction() as transaction:
                await transaction.publish("s", "last")
            async with log.follow("s", name="me") as following:
                found = [await anext(following) for _ in range(21)]
                await following.done(found[-1])
        return placed, found

    behind.stream("s", 1)
    placed, found = asyncio.run(play())
    assert {each.position for each in found[:-1]} == set(placed)
    assert found[-1].text == "last"
    assert behind.holds("me")[0].position == found[-1].position


def test_a_transaction_of_any_size_is_read_whole(log, behind):
    """Pending appends and a marker travel as others do, and what is read in pieces (§13)."""
    behind.stream("s", 2)
    with log.producer().transaction() as transaction:
        for number in range(40):
            transaction.publish("s", bytes(100_000), key=f"{number}")
    with log.follow("s") as following:
        found = list(itertools.islice(following, 40))
    assert {each.position for each in found} == set(transaction.positions)
    assert len(log.read("s", 0) + log.read("s", 1)) == 40


def test_the_store_s_health_is_the_server_s(behind):
    """SERVING while the log answers; nothing but that is told unasked (DESIGN-LOG §12)."""

    class Failing:
        """The engine, which answers no wait while it is told to."""

        def __init__(self, engine):
            self.engine = engine
            self.fails = False

        def wait(self, after, timeout_s):
            if self.fails:
                raise LogUnavailable("no answer")
            return self.engine.wait(after, timeout_s)

        def __getattr__(self, name):
            return getattr(self.engine, name)

    failing = Failing(behind._engine)
    behind._place = behind._place._replace(engine=failing)
    with served(behind) as server, grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="sharedlog.v1.Log")
        serving = health_pb2.HealthCheckResponse

        def status():
            return health.Check(request, timeout=10).status

        until(lambda: status() == serving.SERVING, "health")
        failing.fails = True
        until(lambda: status() == serving.NOT_SERVING, "health of a log that does not answer")
        failing.fails = False
        until(lambda: status() == serving.SERVING, "health again")
        with pytest.raises(grpc.RpcError) as absent:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert absent.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_what_is_served_is_told_to_who_may_call(behind):
    """Reflection is there if it was asked for, and behind the token (DESIGN-LOG §12)."""
    options = {"reflection": True, "tokens": {"shop": b"a token"}}
    with served(behind, **options) as server, grpc.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        for shown in ((), (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.RpcError) as refused:
                list(stub.ServerReflectionInfo(iter([asked]), timeout=10, metadata=shown))
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        shown = (("authorization", "Bearer a token"),)
        (found,) = stub.ServerReflectionInfo(iter([asked]), timeout=10, metadata=shown)
        names = [each.name for each in found.list_services_response.service]
        assert "sharedlog.v1.Log" in names


def test_certificates_say_who_calls(behind, tmp_path):
    """Over TLS, with rights by a name of the certificate (L8)."""
    behind.stream("s")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    urls = {}
    for name in ("shop.example", "other.example"):
        mine = authority.issue_cert(name)
        mine.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        mine.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        urls[name] = (
            f"?ca={tmp_path / 'ca.pem'}&certificate={tmp_path / name}.pem&key={tmp_path / name}.key"
        )
    credentials = grpc.ssl_server_credentials(
        [(issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes())],
        authority.cert_pem.bytes(),
        require_client_auth=True,
    )
    rights = ServerSettings(allow=(AccessRule(peer="dns:shop.example", publish=("*",)),))
    with served(behind, settings=rights, credentials=credentials) as server:
        address = f"grpcs://{server.address}"
        with sharedlog.open(address + urls["shop.example"]) as log:
            log.publish("s", b"a")
            with pytest.raises(sharedlog.NotAllowed):
                log.follow("s")
        with (
            sharedlog.open(address + urls["other.example"]) as log,
            pytest.raises(sharedlog.NoSuchStream),
        ):
            log.publish("s", b"a")
        for url in (
            f"{address}?ca={tmp_path / 'ca.pem'}&timeout_s=5",
            f"grpc://{server.address}?timeout_s=1",
        ):
            with pytest.raises(sharedlog.LogUnavailable) as caught:
                sharedlog.open(url, timeout=timedelta(0))
            assert caught.value.appended is False


def test_where_no_connection_was_made_nothing_was_appended(behind, tmp_path):
    """TLS at a server without, and nobody at all: it is told so, and of reads always (L3)."""
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    at_once = timedelta(0)

    async def opens(url):
        return await sharedlog.aio.open(url, timeout=at_once)

    with served(behind) as server:
        plain = f"grpcs://{server.address}?ca={tmp_path / 'ca.pem'}&timeout_s=5"
        for url in (plain, f"grpc://127.0.0.1:{free_port()}"):
            with pytest.raises(sharedlog.LogUnavailable) as caught:
                sharedlog.open(url, timeout=at_once)
            assert caught.value.appended is False
        with pytest.raises(sharedlog.LogUnavailable) as caught:
            asyncio.run(opens(plain))
        assert caught.value.appended is False
        with sharedlog.open(f"grpc://{server.address}", timeout=at_once) as log:
            log.stream("s")
            server.stop()
            for read in (log.streams, log.holds, lambda: log.read("s", 0)):
                with pytest.raises(sharedlog.LogUnavailable) as caught:
                    read()
                assert caught.value.appended is False
            with pytest.raises(sharedlog.LogUnavailable) as caught:
                log.raise_fence("f")
            assert caught.value.appended is None
            server.start()


def test_a_token_is_given_by_a_file_or_the_environment(behind, tmp_path, monkeypatch):
    """As a session's secret is; one that is none of the server's opens nothing (L8)."""
    tokens = tmp_path / "tokens"
    tokens.write_text("# who\nshop 0123456789abcdef\n")
    with served(behind, tokens=read_tokens(tokens.read_text())) as server:
        url = f"grpc://{server.address}"
        with pytest.raises(sharedlog.NotAllowed):
            sharedlog.open(url)
        monkeypatch.setenv("SHAREDLOG_TOKEN", "fedcba9876543210")
        with pytest.raises(sharedlog.NotAllowed):
            sharedlog.open(url)
        monkeypatch.setenv("SHAREDLOG_TOKEN", "0123456789abcdef")
        sharedlog.open(url).close()
        file = tmp_path / "token"
        file.write_text("0123456789abcdef\n")
        monkeypatch.setenv("SHAREDLOG_TOKEN_FILE", str(file))
        with pytest.raises(sharedlog.InvalidRequest, match="only one"):
            sharedlog.open(url)
        monkeypatch.delenv("SHAREDLOG_TOKEN")
        sharedlog.open(url).close()
        monkeypatch.delenv("SHAREDLOG_TOKEN_FILE")
        sharedlog.open(f"{url}?token_file={file}").close()


@pytest.mark.parametrize(
    "url",
    [
        "grpc://",
        "grpc://localhost",
        "grpc://localhost:99999",
        "grpc://user:hunter2@localhost:1",
        "grpc://localhost:1/path",
        "grpc://localhost:1?a=b",
        "grpc://localhost:1?ca=x",
        "grpcs://localhost:1?ca=/nowhere",
        "grpcs://localhost:1?key=/nowhere",
        "grpc://localhost:1?timeout_s=0",
        "grpc://localhost:1?token_file=/nowhere",
    ],
)
def test_a_url_that_cannot_be_is_refused(url):
    """Before anything is sent (DESIGN-LOG §12)."""
    with pytest.raises(sharedlog.InvalidRequest) as caught:
        sharedlog.open(url)
    assert "hunter2" not in str(caught.value)


def test_a_served_log_is_made_where_it_lives(url, log, behind):
    """And what only an operator beside it may do is done there (DESIGN-LOG §12)."""
    with pytest.raises(sharedlog.InvalidRequest):
        sharedlog.create(url)
    with pytest.raises(sharedlog.InvalidRequest, match="not served"):
        log._engine.scan("")
    with pytest.raises(sharedlog.LogForked):
        sharedlog.open(url, incarnation="0" * 16)
    assert log.incarnation == behind.incarnation
    assert log.durability == behind.durability
    # What only goes on in a thread says so at once, too.
    for act in (log.sweeper, lambda: log.trim_every(timedelta(seconds=1))):
        with pytest.raises(sharedlog.InvalidRequest, match="not served"):
            act()


def test_a_trim_of_a_full_store_is_told_over_grpc(log, behind, monkeypatch):
    """With what remains (L8)."""
    behind.stream("s", 1, timedelta(0))
    for number in range(10):
        behind.publish("s", f"{number}")
    remove = behind._engine.remove

    def full(through):
        remove(min(through, 4))
        raise LogFull("no room")

    monkeypatch.setattr(behind._engine, "remove", full)
    found = log.trim()
    assert (found.trimmed.removed, found.rows, found.remaining) == (9, 4, 5)


def test_settings_are_read_whole_or_refused():
    """A name that is none, a number that is none: who writes rights is told (L8)."""
    found = read_settings(
        """
        [limits]
        followers = 7
        stalled_s = 1.5
        [[allow]]
        token = "shop"
        publish = ["orders"]
        names = ["shop-*"]
        consume = ["billing"]
        [[allow]]
        peer = "dns:ops.example"
        admin = true
        """
    )
    assert found.limits == ServerLimits(followers=7, stalled_s=1.5)
    assert found.allow == (
        AccessRule(
            "",
            "shop",
            publish=("orders",),
            names=("shop-*",),
            consume=("billing",),
        ),
        AccessRule(peer="dns:ops.example", admin=True),
    )
    for text in (
        "x",
        "rights = 1",
        "[limits]\nfollower = 1",
        "[limits]\nfollowers = -1",
        "[limits]\nfollowers = true",
        "[[allow]]\npublish = 'orders'",
        "[[allow]]\nconsume = 'billing'",
        "[[allow]]\nadmin = 1",
        "[[allow]]\nstream = []",
        "[allow]\nadmin = true",
        "limits = 1",
    ):
        with pytest.raises(BadSettings):
            read_settings(text)
    for text in ("", "shop short", "a 0123456789abcdef\na 0123456789abcdef", "0123456789abcdef"):
        with pytest.raises(BadSettings) as caught:
            read_tokens(text)
        assert "0123456789abcdef" not in str(caught.value)


def test_the_command_serves_until_it_is_terminated(tmp_path, capsys):
    """It prints where; what is under way when it is to stop is answered (issue 17)."""
    log = f"sqlite:///{tmp_path / 'log.db'}"
    sharedlog.create(log).close()
    (tmp_path / "rights.toml").write_text("[[allow]]\nadmin = true\n")
    command = [sys.executable, "-m", "sharedlog", "serve", "--log", log, "--listen", "127.0.0.1:0"]
    command += ["--rights", str(tmp_path / "rights.toml"), "--trim-every", "1h"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            with sharedlog.open(f"grpc://{address}") as opened:
                opened.stream("s")
                opened.publish("s", b"a", key="k")
                assert main(["read", f"grpc://{address}", "s"]) == ExitCode.DONE
                assert main(["streams", f"grpc://{address}", "--json"]) == ExitCode.DONE
                following = opened.follow("s")
                assert next(following).value == b"a"
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0
        finally:
            process.kill()
    assert "a" in capsys.readouterr().out


def test_rights_and_tokens_are_read_again_at_sighup(tmp_path):
    """Who follows is judged again; a file that is none leaves what was, and is logged (L8)."""
    url, errors = f"sqlite:///{tmp_path / 'log.db'}", tmp_path / "errors"
    rights, tokens = tmp_path / "rights.toml", tmp_path / "tokens"
    both = '[[allow]]\ntoken = "a"\nadmin = true\n[[allow]]\ntoken = "b"\nfollow = ["s"]\n'
    rights.write_text(both)
    tokens.write_text(f"a {'a' * 16}\nb {'b' * 16}\n")
    (tmp_path / "mine").write_text("a" * 16)
    (tmp_path / "yours").write_text("b" * 16)
    with sharedlog.create(url) as log:
        log.stream("s", 1)
    given = ("serve", "--log", url, "--listen", "127.0.0.1:0", "--rights", str(rights))
    with started("sharedlog", *given, "--tokens-file", str(tokens), log=errors) as process:
        address = process.line()

        def read_again():
            os.kill(process.pid, signal.SIGHUP)

        def refused(log):
            try:
                log.holds()
            except sharedlog.NotAllowed:
                return True
            return False

        with (
            sharedlog.open(f"grpc://{address}?token_file={tmp_path / 'mine'}") as mine,
            sharedlog.open(f"grpc://{address}?token_file={tmp_path / 'yours'}") as yours,
            yours.follow("s") as following,
        ):
            assert refused(yours)
            rights.write_text(both.replace('follow = ["s"]', "admin = true"))
            read_again()
            until(lambda: not refused(yours), "what was allowed meanwhile")
            yours.publish("s", b"x")
            assert next(following).text == "x"
            rights.write_text("[[allow")
            read_again()
            until(lambda: "served_rights_not_read" in errors.read_text(), "it is told")
            yours.publish("s", b"y")
            assert next(following).text == "y"
            rights.write_text(both.partition('[[allow]]\ntoken = "b')[0])
            read_again()
            until(lambda: refused(yours), "what is allowed no more")
            mine.publish("s", b"z")
            with pytest.raises(sharedlog.NotAllowed):
                list(following)
            tokens.write_text(f"b {'b' * 16}\n")
            read_again()
            until(lambda: refused(mine), "a token that is none any more")
        assert process.terminate() == 0


def test_metrics_of_the_log_are_its_servers(tmp_path):
    """``--metrics`` has lags, what is pending, and its appends (issue 17, DESIGN §9)."""
    log = f"sqlite:///{tmp_path / 'log.db'}"
    sharedlog.create(log).close()

    def scraped():
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        return {
            name: float(value)
            for name, _, value in (each.rpartition(" ") for each in lines)
            if name.startswith("sharedlog_")
        }

    given = ("serve", "--log", log, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    with started("sharedlog", *given, log=tmp_path / "errors") as process:
        address = process.line()
        said, metrics = process.line().split()
        assert said == "metrics"
        with sharedlog.open(f"grpc://{address}") as opened:
            opened.stream("s", 1)
            before = scraped()
            with opened.follow("s", name="billing") as following:
                opened.publish("s", b"a")
                opened.publish("s", b"b")
                following.done(next(following))
            pending = opened.producer().transaction().__enter__()
            pending.publish("s", b"c")
            pending.pend()
            found = scraped()
            pending.roll_back()
        assert process.terminate() == 0
    of, hold = f'log="{log}"', f'log="{log}",name="billing",substream="s/0"'
    assert found[f"sharedlog_reachable{{{of}}}"] == 1
    assert found[f"sharedlog_tail_lsn{{{of}}}"] == 3
    assert found[f"sharedlog_open_spans{{{of}}}"] == 1
    assert found[f"sharedlog_hold_lag_entries{{{hold}}}"] == 2
    assert found[f"sharedlog_hold_overdue{{{hold}}}"] == 0
    appends = f"sharedlog_appends_total{{{of}}}"
    assert found[appends] - before.get(appends, 0) == 3


@pytest.mark.parametrize(
    "given",
    [
        ["--metrics", "nowhere"],
        ["--metrics", "127.0.0.1:99999"],
        ["--tls-key", "key.pem"],
        ["--tls-client-authorities", "ca.pem"],
        ["--rights", "bad.toml"],
        ["--tokens-file", "bad.toml"],
        ["--tokens-file", "nowhere"],
    ],
)
def test_a_server_that_is_told_nonsense_does_not_start(given, tmp_path, monkeypatch, capsys):
    """One line says why (DESIGN-LOG §12)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("bad")
    code = main(["serve", "--log", "memory:none", "--listen", "127.0.0.1:0", *given])
    assert code in (ExitCode.USAGE, ExitCode.UNAVAILABLE)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_port_that_is_taken_is_told_in_a_line(behind, tmp_path, capsys):
    """Not by a traceback (L8)."""
    log = f"sqlite:///{tmp_path / 'log.db'}"
    sharedlog.create(log).close()
    with served(behind) as server:
        code = main(["serve", "--log", log, "--listen", server.address])
    assert code == ExitCode.USAGE
    assert f"sharedlog: cannot listen at {server.address}" in capsys.readouterr().err
    assert main(["serve", "--log", log, "--listen", "127.0.0.1:99999"]) == ExitCode.USAGE
    assert "a port is 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["billing", None], ids=["by a hold", "without one"])
def test_a_follower_goes_on_though_its_beginning_was_trimmed(behind, name):
    """What it was given may go: a connection that breaks then is none of its own (L6)."""
    behind.stream("orders", 1, timedelta(milliseconds=1))
    behind.publish("orders", "first", key="k")
    with (
        served(behind) as server,
        sharedlog.open(f"grpc://{server.address}") as log,
        log.follow("orders", name=name) as orders,
    ):
        (first,) = orders.poll(30)
        if name is not None:
            orders.done(first)
        while behind.trim().rows == 0:
            behind.publish("orders", "more", key="k")
            (more,) = orders.poll(30)
            if name is not None:
                orders.done(more)
                orders._tell(force=True)
        server.stop()
        server.start()
        behind.publish("orders", "third", key="k")
        found = []
        while not found or found[-1].text != "third":
            found += orders.poll(30)
    assert [each.text for each in found] == ["third"]
