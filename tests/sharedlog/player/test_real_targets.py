"""The player and the target that rifl's server hosts, together (DESIGN-LOG §15)."""

import asyncio
import contextlib
import resource
import shutil
import threading
from contextlib import ExitStack
from datetime import timedelta

import grpc
import pytest
from structlog.testing import capture_logs

import rifl
import rifl.aio
import sharedlog
from chaos.ports import free_port
from rifl._cli.command import main as rifl_command
from rifl.core._shared.errors import RecordPending, StoreUnavailable
from sharedlog import Target
from sharedlog._cli.command import main as sharedlog_command
from sharedlog._core.player import backoff
from sharedlog._core.trim import Committers, trim
from sharedlog._player import main_stream
from sharedlog._player.link import _OPTIONS
from tests.helpers.processes import started
from tests.helpers.servers import KINDS, generic, serve
from tests.sharedlog.player.conftest import declared
from tests.sharedlog.player.target_process import METHOD, effects, prepare, reserve, reserve_async

SHOWN = "a secret of the player's"
# gRPC's default: grpc.http2.min_ping_interval_without_data_ms.
SERVERS_BEAR_MS = 300_000
NOT_THERE = "/shop.v1.Inventory/Remove"


class Shop:
    """A served target, and what it refuses to do."""

    def __init__(self, stack, kind, directory):
        self.failing, self.hanging = set(), set()
        self.go_on, self.went_on = threading.Event(), threading.Event()

        def called(request, context):
            if request.decode() in self.failing:
                context.abort(grpc.StatusCode.INTERNAL, "no room")
            if request.decode() in self.hanging:
                try:
                    with rifl.transaction(context):
                        self.go_on.wait(60)
                finally:
                    self.went_on.set()
            return reserve(request, context)

        async def called_async(request, context):
            if request.decode() in self.failing:
                await context.abort(grpc.StatusCode.INTERNAL, "no room")
            if request.decode() in self.hanging:
                try:
                    async with rifl.aio.transaction(context):
                        while not self.go_on.is_set():
                            await asyncio.sleep(0.01)
                finally:
                    self.went_on.set()
            return await reserve_async(request, context)

        url = f"sqlite:///{directory / 'target.db'}"
        dedup = stack.enter_context(rifl.Deduplicator(url, methods={METHOD: "atomic"}))
        handler = called_async if kind == "aio" else called
        handlers = [generic("shop.v1.Inventory", {"Reserve": handler})]
        self.address = stack.enter_context(
            serve(kind, handlers, dedup=dedup, add=lambda server: self._add(server, dedup))
        ).address

    @staticmethod
    def _add(server, dedup):
        sharedlog.add_target_to_server(server, dedup, {"orders": [METHOD]}, token=SHOWN)


@pytest.fixture(params=KINDS)
def shop(request, tmp_path):
    """One, on each kind of server."""
    prepare(tmp_path)
    with ExitStack() as stack:
        yield Shop(stack, request.param, tmp_path)


def test_failing_and_refused_messages_become_dead_letters(house, log, shop, tmp_path):
    """A handler that fails for good, and a method that is not there; all others run (P7)."""
    shop.failing.add("3")
    house.player(declared(shop, token=SHOWN, tries=2, failed="dead-letter", refused="dead-letter"))
    for number in range(10):
        method = NOT_THERE if number == 5 else METHOD
        log.publish_call("orders", method, b"%d" % number, key=b"%d" % number)
    house.wait_for(lambda: len(effects(tmp_path)) == 8, 60)
    for number in range(2):
        expected = [each.text for each in log.read("orders", number) if each.text not in "35"]
        assert [body for at, body in effects(tmp_path) if at == number] == expected

    def letters():
        with contextlib.suppress(sharedlog.NoSuchStream):
            return [each for number in range(8) for each in log.read("deadletters", number)]
        return []

    house.wait_for(lambda: len(letters()) == 2)
    reasons = {each.key: each.headers["reason"].decode() for each in letters()}
    assert reasons[b"3"].startswith("FAILED")
    assert "no room" in reasons[b"3"]
    assert reasons[b"5"].startswith("REFUSED")


def test_a_message_that_hangs_in_its_transaction_becomes_a_dead_letter(house, log, shop, tmp_path):
    """Though it has SQLite's only writer, for which all others wait; they are taken then (P7)."""
    shop.hanging.add("3")
    patience = timedelta(milliseconds=400)
    house.player(declared(shop, token=SHOWN, tries=2, failed="dead-letter", patience=patience))
    for number in range(10):
        log.publish_call("orders", METHOD, b"%d" % number, key=b"%d" % number)
    try:
        house.wait_for(lambda: len(effects(tmp_path)) == 9, 60)
        (letter,) = [each for number in range(8) for each in log.read("deadletters", number)]
    finally:
        shop.go_on.set()
        assert shop.went_on.wait(20)
    assert letter.key == b"3"
    assert b"has not ended" in letter.headers["reason"]
    assert "3" not in {body for _, body in effects(tmp_path)}


def test_a_target_that_does_not_know_its_player_takes_nothing(house, log, shop, tmp_path):
    """The wrong token is told as its last error, and it is tried again (§15)."""
    player = house.player(declared(shop, token=SHOWN[::-1]))
    log.publish_call("orders", METHOD, b"1")
    house.wait_for(
        lambda: any("let this player in" in each.error for each in player.targets().values())
    )
    assert effects(tmp_path) == []
    player.reload([declared(shop, token=SHOWN)])
    house.wait_for(lambda: len(effects(tmp_path)) == 1, 60)


def test_a_transaction_is_taken_whole(house, log, shop, tmp_path):
    """Its messages of one substream, in their order, between those of others (P1)."""
    house.player(declared(shop, token=SHOWN))
    for number in range(3):
        with log.producer().transaction() as transaction:
            for at in range(30):
                transaction.publish_call("orders", METHOD, b"%d.%d" % (number, at), key=b"%d" % at)
    house.wait_for(lambda: len(effects(tmp_path)) == 90, 60)
    for number in range(2):
        there = [each.text for each in log.read("orders", number)]
        assert [body for at, body in effects(tmp_path) if at == number] == there


class _CutOff(sharedlog.PlayerObserver):
    """Is told when a target is cut off."""

    def __init__(self):
        self.happened = threading.Event()
        self.times = 0

    def troubled(self, player, target, cause):
        self.times += 1
        self.happened.set()


def test_an_idle_target_is_pinged_no_more_often_than_servers_bear():
    """A server hangs up on who pings it without data within five minutes, again and again (§15)."""
    assert dict(_OPTIONS)["grpc.keepalive_time_ms"] > SERVERS_BEAR_MS


@pytest.mark.long
def test_an_idle_target_stays_connected(house, log, shop, tmp_path):
    """It has nothing to do for as long as three pings in a minute would take to be too many."""
    watch = _CutOff()
    house.player(declared(shop, token=SHOWN), observer=watch)
    log.publish_call("orders", METHOD, b"1")
    house.wait_for(lambda: len(effects(tmp_path)) == 1)
    assert not watch.happened.wait(75)


def test_a_target_that_is_not_there_is_looked_for_soon_and_told_of_once(house):
    """It is found again within a second or so of its start, and fills no log until then (P4)."""
    tries = []

    class Watch(sharedlog.PlayerObserver):
        def troubled(self, player, target, cause):
            tries.append(cause)

    gone = f"127.0.0.1:{free_port()}"
    with capture_logs() as events:
        house.player(Target(name="shop", address=gone, streams=["orders"]), observer=Watch())
        house.wait_for(lambda: len(tries) > 4)
    assert len([each for each in events if each["event"] == "target_down"]) == 1
    assert backoff._LONGEST_UNREACHED_S <= 1.0
    assert dict(_OPTIONS)["grpc.max_reconnect_backoff_ms"] <= 1000


class _Process:
    """A target in a process of its own, over a file that can be full, or be put back."""

    def __init__(self, stack, kind, directory):
        self._stack = stack
        self._kind = kind
        self._directory = directory
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        prepare(directory)
        self.start()

    def _begun(self):
        where = (self._kind, str(self._directory), str(self._port))
        module = "tests.sharedlog.player.target_process"
        return started(module, *where, log=self._directory / "errors", with_input=True)

    def start(self):
        self._process = self._stack.enter_context(self._begun())
        assert self._process.line() == "serves"

    def kill(self):
        self._process.kill()

    def ended(self):
        """Have it end by itself; what it said."""
        process = self._stack.enter_context(self._begun())
        assert process.wait() != 0
        return process.errors()

    def copy(self, to, *, note):
        """Copy the files of its store as they are while it is down, and the note beside them."""
        to.mkdir()
        for each in self._directory.glob("target.db*"):
            if note or each.name in ("target.db", "target.db-wal"):
                shutil.copy(each, to)

    def put_back(self, copied):
        """Put a copy in the place of the files of its store."""
        for each in self._directory.glob("target.db*"):
            if each.name in ("target.db", "target.db-wal", "target.db-shm") or any(
                each.name == other.name for other in copied.iterdir()
            ):
                each.unlink()
        for each in copied.iterdir():
            shutil.copy(each, self._directory)

    def full(self, *, is_full=True):
        """No file of its may grow any more; or may again."""
        most = 4096 if is_full else resource.RLIM_INFINITY
        limits = (most, resource.RLIM_INFINITY)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, limits)


@pytest.fixture(params=["sync", "aio"])
def process(request, tmp_path):
    """One, on each kind of server."""
    with ExitStack() as stack:
        yield _Process(stack, request.param, tmp_path)


def call(log, numbers):
    """Publish numbered messages to both substreams."""
    for number in numbers:
        log.publish_call("orders", METHOD, b"%d" % number, key=b"%d" % number)


def in_order(log, directory):
    """Whether what was done is what the log has, in its order, once."""
    for number in range(2):
        there = [each.text for each in log.read("orders", number)]
        assert [body for at, body in effects(directory) if at == number] == there
    return True


def test_a_target_whose_store_is_full_is_waited_for(house, log, process, tmp_path):
    """It says so, skips nothing though it may fail once only, and goes on with room (P1)."""
    watch = _CutOff()
    strict = {"tries": 1, "failed": "dead-letter", "refused": "dead-letter"}
    player = house.player(declared(process, **strict), observer=watch)
    call(log, range(5))
    house.wait_for(lambda: len(effects(tmp_path)) == 5)
    process.full()
    call(log, range(5, 10))
    house.wait_for(lambda: watch.times >= 3)
    # A row that is moved, or a handler's transaction: whichever comes first finds it.
    said = (StoreUnavailable.told, RecordPending.told)
    told = house.told_that(player, lambda told: any(each in told.error for each in said))
    assert told.lag > 0
    assert len(effects(tmp_path)) == 5
    process.full(is_full=False)
    house.wait_for(lambda: len(effects(tmp_path)) == 10, 60)
    told = house.told_that(player, lambda told: told.lag == 0)
    assert (told.dead_letters, told.attempts) == (0, {})
    assert in_order(log, tmp_path)


def test_a_target_that_dies_while_it_is_idle_is_told_to_be_down(
    house, log, process, tmp_path, monkeypatch
):
    """Though nothing is to be sent to it, on either kind of server (P4)."""
    monkeypatch.setattr(main_stream, "_PASS_S", 1e9)
    player = house.player(declared(process))
    call(log, range(4))
    house.wait_for(lambda: len(effects(tmp_path)) == 4)
    house.told_that(player, lambda told: told.state == "N" and told.lag == 0)
    process.kill()
    told = house.told_that(player, lambda told: told.state == "S" and told.error, timeout_s=20)
    assert "connection" in told.error
    process.start()
    house.wait_for_state(player, "N")
    assert in_order(log, tmp_path)


def put_back(house, log, process, player, tmp_path, *, note):
    """Have a target go on, and put its files back to where they were before."""
    call(log, range(10))
    house.wait_for(lambda: len(effects(tmp_path)) == 10)
    process.kill()
    copied = tmp_path / "copied"
    process.copy(copied, note=note)
    process.start()
    call(log, range(10, 20))
    house.wait_for(lambda: len(effects(tmp_path)) == 20)
    house.told_that(player, lambda told: told.lag == 0)
    # While it is away, its hold stays where it was.
    newest = min(log.read("orders", at)[-1].position.lsn for at in range(2))
    house.wait_for(lambda: all(each.lsn >= newest for each in log.holds()))
    process.kill()
    process.put_back(copied)
    assert len(effects(tmp_path)) == 10


def test_a_target_that_is_put_back_with_all_of_its_files_goes_on_from_there(
    house, log, process, tmp_path
):
    """Its index is what its effects are: what came behind them is called, once (P1, P6)."""
    player = house.player(declared(process))
    put_back(house, log, process, player, tmp_path, note=True)
    process.start()
    call(log, range(20, 25))
    house.wait_for(lambda: len(effects(tmp_path)) == 25, 60)
    assert in_order(log, tmp_path)
    house.wait_for_state(player, "N")


@pytest.mark.slow
def test_a_target_that_is_put_back_is_restored_by_an_operators_word(
    house, log, process, tmp_path, capsys
):
    """Undeclared its store is refused; declared, its target stops until it is adopted (P6)."""
    player = house.player(declared(process))
    put_back(house, log, process, player, tmp_path, note=False)
    assert "StoreLost" in process.ended()
    told = house.told_that(player, lambda told: told.state == "S" and told.error)
    assert "connection" in told.error
    assert rifl_command(["restored", f"sqlite:///{tmp_path}/target.db", "--yes"]) == 0
    process.start()
    call(log, range(20, 25))
    told = house.wait_for_state(player, "stopped")
    assert isinstance(told.stopped, sharedlog.TargetStopped)
    assert told.why == "WIPED"
    assert len(effects(tmp_path)) == 10
    url = f"sqlite:///{tmp_path}/log.db"
    assert sharedlog_command(["resume", url, "shop", "--adopt", "--why", "restored"]) == 0
    house.wait_for(lambda: len(effects(tmp_path)) == 25, 60)
    assert in_order(log, tmp_path)


def test_a_target_that_is_put_back_behind_a_trim_stops(house, log, process, tmp_path):
    """What it has not got is gone from the log: it says so, and none of the rest is called (P6)."""
    player = house.player(declared(process))
    put_back(house, log, process, player, tmp_path, note=True)
    assert log._run(trim(Committers(), 10**17, 0)).rows > 10
    process.start()
    call(log, range(20, 25))
    told = house.wait_for_state(player, "stopped")
    assert told.why == "TRIMMED"
    assert len(effects(tmp_path)) == 10
