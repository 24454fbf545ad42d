"""A log, and fake targets of it."""

import threading
import time
from contextlib import ExitStack
from datetime import timedelta

import pytest

import sharedlog
from sharedlog._player.declared import Target
from sharedlog._player.player import Player
from tests.sharedlog.player.fake_target import FakeTarget, Store


@pytest.fixture
def log(tmp_path):
    """An empty log with a stream of two substreams."""
    with sharedlog.create(f"sqlite:///{tmp_path / 'log.db'}") as made:
        made.stream("orders", 2)
        yield made


def until(condition, timeout_s=60.0, say=str):
    """Wait until something is so that is looked at again and again; else say what is."""
    waits = threading.Event()
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, say()
        waits.wait(0.02)


@pytest.fixture
def wait_for():
    """Wait until something is so."""
    return until


class House:
    """Targets and players of one test, which end with it."""

    def __init__(self, log, stack):
        self.log = log
        self._stack = stack

    def target(self, handler=lambda _: None, *, store=None, streams=True):
        made = FakeTarget(store or Store(), handler, streams=streams)
        self._stack.callback(made.close)
        return made

    wait_for = staticmethod(until)

    def wait_for_state(self, player, state, name="shop"):
        """Wait until a target is told to be so; return what is told."""
        self.wait_for(lambda: name in (told := player.targets()) and told[name].state == state)
        return player.targets()[name]

    def told_that(self, player, condition, name="shop", timeout_s=60.0):
        """Wait until something is told of a target; return what."""
        self.wait_for(
            lambda: name in (told := player.targets()) and condition(told[name]),
            timeout_s,
            say=player.targets,
        )
        return player.targets()[name]

    def opened(self, url, **options):
        """A log that is closed behind its players."""
        return self._stack.enter_context(sharedlog.open(url, **options))

    def close(self):
        """End all of it now."""
        self._stack.close()

    def player(self, *targets, log=None, **options):
        options = {"takeover": timedelta(seconds=60)} | options
        return self._stack.enter_context(Player(log or self.log, targets, **options))


def declared(fake, name="shop", **given):
    """A target that is quick to be tried again."""
    return Target(**({"name": name, "address": fake.address, "streams": ["orders"]} | given))


@pytest.fixture
def house(log):
    with ExitStack() as stack:
        yield House(log, stack)
