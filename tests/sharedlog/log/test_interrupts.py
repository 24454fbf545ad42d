"""Interrupts anywhere in a call, by a signal's exception or a collector: others go on."""

import gc
import linecache
import sys
import threading
from pathlib import Path

import pytest

import sharedlog
from sharedlog._engines.lead import Lead
from tests.sharedlog.reads import texts

# Files and functions, whether they are entered or left, and which time: where it begins to write,
# has just begun, has just got the lead, gathers, leaves, enters what it has to leave. The lead
# is first the publisher's, within it the engine's.
PLACES = [
    ("file.py", "_begin", "call", 1),
    ("file.py", "_begin", "return", 1),
    ("file.py", "writing", "call", 1),
    ("contextlib.py", "__enter__", "return", 1),
    *(
        (file, function, event, time)
        for file, function, times in (
            ("publisher.py", "_gather", 1),
            ("group_commit.py", "_taken_along", 1),
            *(("lead.py", function, 2) for function in ("_turn", "take", "_leave")),
        )
        for event in ("call", "return")
        for time in range(1, times + 1)
    ),
]


class _Interrupted(BaseException):
    pass


def _interrupted(file, function, event, time, call):
    """Make a call that is interrupted once, when a function is entered or left; whether it was."""
    struck = []
    seen = 0

    def strike(frame, what, _):
        nonlocal seen
        code = frame.f_code
        here = code.co_name == function and code.co_filename.endswith(f"/{file}")
        seen += what == event and here
        if seen == time and not struck:
            struck.append(True)
            raise _Interrupted

    sys.setprofile(strike)
    try:
        call()
    except (_Interrupted, sharedlog.LogError):
        pass
    finally:
        sys.setprofile(None)
    return bool(struck)


@pytest.mark.parametrize(("file", "function", "event", "time"), PLACES)
def test_others_go_on_after_an_interrupt_anywhere(
    tmp_path, monkeypatch, file, function, event, time
):
    """Other threads, other handles, and the one that was interrupted (DESIGN-LOG §12, L2)."""
    # The engine looks for others to take along only if some wait.
    monkeypatch.setattr(Lead, "waiting", property(lambda lead: True))
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with sharedlog.create(url) as log, sharedlog.open(url) as other:
        log.stream("s", 1)
        log.publish("s", "first")
        struck = _interrupted(file, function, event, time, lambda: log.publish("s", "second"))
        assert struck
        done = []

        def publish(handle, text):
            handle.publish("s", text)
            done.append(text)

        threads = [
            threading.Thread(target=publish, args=(handle, text), daemon=True)
            for handle, text in ((log, "third"), (log, "fourth"), (other, "fifth"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(done) == ["fifth", "fourth", "third"]
        found = texts(log, "s")
        assert sorted(set(found) - {"second"}) == ["fifth", "first", "fourth", "third"]
        assert len(found) == len(set(found))


@pytest.mark.parametrize("module", ["publisher.py", "group_commit.py", "lead.py"])
def test_threads_that_wait_go_on_after_an_interrupt_of_the_one_that_leads(tmp_path, module):
    """At each line of it: nobody waits for ever (DESIGN-LOG §12, L2)."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with sharedlog.create(url) as log:
        log.stream("s", 1)
        log.publish("s", "0")
        told = set()
        for line in range(1, 200):
            seen = 0

            def trace(frame, event, _, line=line):
                nonlocal seen
                if not frame.f_code.co_filename.endswith(f"/{module}"):
                    return None
                # Python looks for signals behind calls and jumps, never between a lock that was
                # taken and the block under it.
                source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
                if event == "line" and not source.lstrip().startswith("with "):
                    seen += 1
                    if seen == line:
                        raise _Interrupted
                return trace

            texts_ = [f"{line}.{each}" for each in range(3)]

            def publish(text):
                log.publish("s", text)
                told.add(text)

            threads = [
                threading.Thread(target=publish, args=(text,), daemon=True) for text in texts_
            ]
            for thread in threads:
                thread.start()
            sys.settrace(trace)
            try:
                log.publish("s", f"{line}.mine")
            except (_Interrupted, sharedlog.LogError):
                pass
            else:
                told.add(f"{line}.mine")
            finally:
                sys.settrace(None)
            for thread in threads:
                thread.join(20)
            assert not any(thread.is_alive() for thread in threads), line
            if seen < line:
                break
        else:
            pytest.fail("its lines do not end")
        found = texts(log, "s")
        assert told <= set(found)
        assert len(found) == len(set(found))


def test_a_collector_at_any_line_hinders_nobody(tmp_path):
    """What it lets go of there, followers and transactions, is of the same log (L2)."""
    with sharedlog.create(f"sqlite:///{tmp_path / 'log.db'}") as log:
        log.stream("s", 1)
        log.publish("s", "0")
        package = str(Path(sharedlog.__file__).parent)
        lines, published = 0, 0

        def trace(frame, event, _):
            nonlocal seen
            if not frame.f_code.co_filename.startswith(package):
                return None
            if event == "line":
                seen += 1
                if abandoned and seen > lines:
                    abandoned.pop()
                    gc.collect()
            return trace

        seen = 1
        gc.collect()
        gc.freeze()
        while seen > lines:
            abandoned = []
            for _ in range(20):
                following, transaction = (
                    log.follow("s", name=None),
                    log.producer().transaction(),
                )
                transaction.publish("s", "never")
                box = [following, transaction]
                box.append(box)
                abandoned.append(box)
            del following, transaction, box
            seen = 0
            published += 1
            sys.settrace(trace)
            try:
                log.publish("s", str(published))
            finally:
                sys.settrace(None)
            lines += 20
        assert lines > 100
        assert sorted(texts(log, "s"), key=int) == [str(each) for each in range(published + 1)]
