"""The lead that threads pass on: nobody's work is lost, and nobody waits for ever."""

import linecache
import sys
import threading

import pytest

from sharedlog._core.errors import LogUnavailable
from sharedlog._engines import lead as lead_module
from sharedlog._engines.lead import Candidate, Lead
from tests.helpers.waiting import until


class _Interrupted(BaseException):
    pass


class _Work(Candidate):
    def __init__(self, name):
        super().__init__()
        self.name = name


class _Worker:
    """Threads that have their work done by whoever leads; some take all along that wait."""

    def __init__(self, takes):
        self.lead = Lead()
        self.takes = takes
        self.go = threading.Event()
        self.done = []
        self.began = threading.Event()

    def start(self, name, trace=None):
        def run():
            sys.settrace(trace)
            try:
                self.lead.run(_Work(name), self._act)
            except _Interrupted:
                pass
            finally:
                sys.settrace(None)

        found = threading.Thread(target=run, daemon=True)
        found.start()
        return found

    def _act(self, mine):
        self.began.set()
        assert self.go.wait(20)
        along = self.lead.take(lambda _: mine.name in self.takes)
        self.done.append([each.name for each in (mine, *along)])


@pytest.mark.parametrize(
    ("takes", "groups"),
    [("", ["a", "b", "c", "d"]), ("b", ["a", "bcd"]), ("a", ["abcd"]), ("c", ["a", "b", "cd"])],
)
def test_the_lead_goes_to_the_first_that_came_with_those_it_takes_along(takes, groups):
    """In the order in which they came; each once (DESIGN-LOG §12, L3)."""
    worker = _Worker(takes)
    threads = [worker.start("a")]
    assert worker.began.wait(20)
    for count, name in enumerate("bcd", start=1):
        threads.append(worker.start(name))
        until(lambda count=count: worker.lead.waiting == count, "it waits")
    worker.go.set()
    for thread in threads:
        thread.join(20)
    assert ["".join(each) for each in worker.done] == groups


def test_who_leads_gathers_until_as_many_wait_as_it_expects():
    """It is woken by the last of them, not by time (DESIGN-LOG §12, L2)."""
    lead, told = Lead(), []
    ready = threading.Event()

    def act(mine):
        if not told:
            ready.set()
            told.append(lead.gather(mine, 2, 60))
            lead.take(lambda _: True)

    threads = [threading.Thread(target=lead.run, args=(Candidate(), act), daemon=True)]
    threads[0].start()
    assert ready.wait(20)
    until(lambda: lead._gathering is not None, "it gathers")
    for _ in range(2):
        threads.append(threading.Thread(target=lead.run, args=(Candidate(), act), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(20)
    assert told == [True]
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("along", [0, 2, 5], ids=["none", "some", "all"])
def test_all_that_wait_for_a_thread_that_hangs_go_on(along):
    """Also those that wait without a timeout of their own, in vain or taken along."""
    lead, told = Lead(), []
    begun, ends, hangs, gone = (threading.Event() for _ in range(4))

    def act(mine):
        begun.set()
        assert ends.wait(20)
        taken = iter(range(along))
        lead.take(lambda _: next(taken, None) is not None)
        hangs.set()
        assert gone.wait(20)

    def wait():
        try:
            lead.run(Candidate(), lambda _: told.append("led"))
            told.append("along")
        except LogUnavailable as error:
            told.append(error.appended)

    hanging = threading.Thread(target=lead.run, args=(Candidate(), act), daemon=True)
    hanging.start()
    assert begun.wait(20)
    waiting = [threading.Thread(target=wait, daemon=True) for _ in range(5)]
    for count, thread in enumerate(waiting, start=1):
        thread.start()
        until(lambda count=count: lead.waiting == count, "it waits")
    timed = [each.timed for each in lead._waiting.values()]
    ends.set()
    assert hangs.wait(20)
    # Those with a timeout begin to wait anew, with a shorter one.
    lead._longest_s = 0.01
    for each in (*lead._waiting.values(), *lead._riding.values()):
        if each.timed:
            each.wake()
    for thread in waiting:
        thread.join(20)
        assert not thread.is_alive()
    gone.set()
    hanging.join(20)
    assert timed == [True, True, False, False, False]
    assert sorted(told, key=str) == [False] * (5 - along) + ["along"] * along
    assert lead._leader is None


def test_who_gathers_in_vain_is_told():
    """So that it does not wait again at once (DESIGN-LOG §12, L2)."""
    lead, told = Lead(), []
    lead.run(Candidate(), lambda mine: told.append(lead.gather(mine, 1, 0.001)))
    assert told == [False]
    assert lead._gathering is None


@pytest.mark.parametrize("takes", [(), ("first",)], ids=["led", "taken along"])
def test_others_go_on_after_an_interrupt_of_one_that_waits(takes):
    """At each line of what it runs: before it waits, woken, leading (DESIGN-LOG §12, L2)."""
    for line in range(1, 200):
        seen = 0

        def trace(frame, event, _, line=line):
            nonlocal seen
            if frame.f_code.co_filename != lead_module.__file__:
                return None
            # Python looks for signals behind calls and jumps, never between a lock that was
            # taken and the block under it.
            source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if event == "line" and not source.lstrip().startswith("with "):
                seen += 1
                if seen == line:
                    raise _Interrupted
            return trace

        worker = _Worker(takes)
        first = worker.start("first")
        assert worker.began.wait(20)
        victim = worker.start("victim", trace)
        until(lambda: worker.lead.waiting or not victim.is_alive(), "it waits")  # noqa: B023
        last = worker.start("last")
        worker.go.set()
        for thread in (first, victim, last):
            thread.join(20)
            assert not thread.is_alive(), line
        done = [name for group in worker.done for name in group]
        assert sorted(set(done) - {"victim"}) == ["first", "last"]
        assert len(done) == len(set(done))
        assert worker.lead._leader is None
        assert not worker.lead.waiting
        if seen < line:
            return
    pytest.fail("its lines do not end")
