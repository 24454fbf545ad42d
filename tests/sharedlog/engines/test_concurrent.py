"""Every engine under writers that race, die and lose replies (DESIGN-LOG §12, L1 to L7)."""

import random
import secrets
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused, Stamp
from sharedlog._core.errors import Fenced, LogUnavailable
from sharedlog._core.fences import Fence, raise_fence
from sharedlog._core.producers import ProducerId, append, grant
from sharedlog._core.spans import retire
from sharedlog._engines.driving import carry_out
from sharedlog._engines.memory import MemoryEngine
from sharedlog._engines.opening import create_engine, open_engine
from tests.helpers.forked import Forked
from tests.helpers.waiting import until
from tests.sharedlog.engines.writer import messages
from tests.sharedlog.logs import TOKEN, message, producer, texts
from tests.sharedlog.places import ENGINES, RESTARTED, SHARED, url_of


@pytest.fixture
def stack():
    """Closes what was opened."""
    with ExitStack() as stack:
        yield stack


def opener(request, tmp_path, stack):
    """Make a log of an engine; what opens it, any number of times."""
    url = url_of(request.param, tmp_path, request.getfixturevalue)
    create_engine(url, {}).close()
    return url, lambda: stack.enter_context(closing(open_engine(url)))


@pytest.fixture(params=ENGINES)
def opened(request, tmp_path, stack):
    """Opens a log, of each engine."""
    return opener(request, tmp_path, stack)[1]


@pytest.fixture(params=SHARED)
def shared(request, tmp_path, stack):
    """A log's URL, and what opens it, of each engine that processes share."""
    return opener(request, tmp_path, stack)


class Lossy:
    """An engine whose replies are lost now and then, and sometimes its requests."""

    def __init__(self, engine, seed):
        self._engine = engine
        self._dice = random.Random(seed)

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def commit(self, commit):
        """Commit it, or not, and say which, or not."""
        drawn = self._dice.random()
        if drawn < 0.2:
            raise LogUnavailable("the request was lost")
        found = self._engine.commit(commit)
        if drawn < 0.5:
            raise LogUnavailable("the reply was lost")
        return found


def patiently(work):
    """Do the same again until somebody answers."""

    def attempt():
        try:
            return (work(),)
        except LogUnavailable:
            return None

    return until(attempt, "an answer", 120)[0]


class Watching:
    """A reader that follows a log, and is told of nothing twice, late, or changed."""

    def __init__(self, engine):
        self._engine = engine
        self._stop = threading.Event()
        self.rows = []

    def run(self):
        """Read on until it is stopped, and then to the end."""
        while True:
            last = self._stop.is_set()
            after = len(self.rows)
            self._engine.wait(after, 0.0 if last else 0.05)
            found = self._engine.read(after, 100)
            assert [row.lsn for row in found.rows] == list(
                range(after + 1, after + 1 + len(found.rows))
            )
            self.rows += found.rows
            if last and not found.rows:
                return self.rows

    def stop(self):
        """Have it end."""
        self._stop.set()


def test_it_answers_as_the_log_in_memory_does(opened):
    """Through two handles in turn: commits, refusals, keys, reads by tag and without (L1 to L7)."""
    dice = random.Random(17)
    reference, engines = MemoryEngine(), [opened(), opened()]
    keys, tags = [f"k/{n}" for n in range(6)], [f"t/{n}" for n in range(4)]

    def answer(engine, commit):
        try:
            return engine.commit(commit)
        except Refused as refused:
            return refused.found

    for step in range(120):
        known = reference.get(tuple(keys))
        asked = dice.sample(keys, dice.randrange(4))
        values = [b"", b"x", b"yy", None]
        commit = Commit(
            tuple(
                Condition(key, known[key] if dice.random() < 0.8 else dice.choice(values))
                for key in asked
            ),
            (),
            tuple(
                NewEntry(
                    dice.randbytes(dice.randrange(50)),
                    tuple(dice.choices(tags, k=dice.randrange(4))),
                )
                for _ in range(dice.randrange(4))
            ),
            dice.randrange(1000),
        )
        stamps = list(Stamp) if commit.entries else [Stamp.NONE]
        commit = commit._replace(
            puts=tuple(
                Put(key, dice.choice(values), dice.choice(stamps))
                for key in dice.sample(keys, dice.randrange(4))
            )
        )
        one, other = engines if dice.random() < 0.5 else engines[::-1]
        assert answer(one, commit) == answer(reference, commit)
        if dice.random() < 0.05:
            through = dice.randrange(reference.tail() + 1)
            for each in (one, reference):
                each.remove(through)
        if step % 4 == 0:
            first, tail = reference.first(), reference.tail()
            assert (other.first(), other.tail()) == (first, tail)
            after = dice.randrange(first - 1, tail + 1)
            for tag in (None, dice.choice(tags)):
                limit = dice.randrange(1, 10)
                found, expected = (each.read(after, limit, tag) for each in (other, reference))
                assert found.rows == expected.rows
                # Whether the limit cut it short need not be known where it was just met.
                ends = {expected.through, *(row.lsn for row in expected.rows[limit - 1 :])}
                assert found.through in ends
            assert other.scan("k/") == reference.scan("k/")
            assert other.get(tuple(keys)) == reference.get(tuple(keys))


def test_an_append_whose_reply_was_lost_is_there_once(opened):
    """Sent again it is answered, or happens now; by many at once, by handles of their own (L3)."""

    def write(number):
        engine = Lossy(opened(), number)
        mine = patiently(lambda: carry_out(engine, grant(TOKEN)))
        for seq in range(1, 16):
            work = [message(f"{number}.{seq}.{part}", seq % 2) for part in range(2)]
            found = patiently(lambda seq=seq, work=work: carry_out(engine, append(mine, seq, work)))
            assert carry_out(engine._engine, append(mine, seq, work)).lsn == found.lsn

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(write, number) for number in range(4)]:
            each.result(240)
    engine = opened()
    for substream in (0, 1):
        found = [tuple(map(int, text.split("."))) for text in texts(engine, substream)]
        for number in range(4):
            assert [each for each in found if each[0] == number] == [
                (number, seq, part)
                for seq in range(1, 16)
                if seq % 2 == substream
                for part in range(2)
            ]


def test_nothing_under_a_lower_number_is_written_once_a_fence_is_raised(opened):
    """Not even what is on its way when that returns (L4)."""
    stop = threading.Event()

    def write(name):
        engine = opened()
        mine, seq, written = producer(engine), 1, []
        while not stop.is_set():
            fence = Fence("f", numbers[-1])
            try:
                found = carry_out(
                    engine, append(mine, seq, [message(f"{name}.{seq}")], fence=fence)
                )
            except Fenced:
                continue
            written.append((fence.number, found.lsn))
            seq += 1
        return written

    engine = opened()
    numbers = [carry_out(engine, raise_fence("f"))]
    after = {}
    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write, name) for name in "abc"]
        try:
            for _ in range(15):
                tail = engine.tail()
                until(lambda tail=tail: engine.tail() > tail + 2, "they write", 60)
                higher = carry_out(engine, raise_fence("f"))
                after[numbers[-1]] = engine.tail()
                numbers.append(higher)
        finally:
            stop.set()
        written = [each for one in writing for each in one.result(60)]
    assert len(written) >= 30
    assert [each for each in written if each[0] in after and each[1] > after[each[0]]] == []


def test_who_waits_hears_of_another_handle(opened):
    """However long after the last append (L5)."""
    one, two = opened(), opened()
    with ThreadPoolExecutor(1) as pool:
        for number in range(1, 6):
            waiting = pool.submit(two.wait, number - 1, 60)
            one.commit(Commit(entries=(NewEntry(b"a"),)))
            assert waiting.result(30) == number
            # Nothing follows.
            assert two.wait(number, 0.05) == number


def test_rivals_in_processes_that_are_killed(shared):
    """Whole appends, all that were acknowledged, read without a gap; each goes on (L1, L2, L7)."""
    url, opened = shared
    running = [Forked(["tests.sharedlog.engines.writer", url, name], text=True) for name in "abc"]
    watching = Watching(opened())
    told, ids = {}, {}
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(watching.run)
        try:
            for name, process in zip("abc", running, strict=True):
                ids[name] = int(process.stdout.readline())
                told[name] = [int(process.stdout.readline().split()[0]) for _ in range(10)]
        finally:
            for process in running:
                process.send_signal(signal.SIGKILL)
        for name, process in zip("abc", running, strict=True):
            # The last line may be cut.
            lines = process.stdout.read().split("\n")[:-1]
            told[name] += [int(line.split()[0]) for line in lines]
            assert process.wait(20) == -signal.SIGKILL
            process.stdout.close()
        engine = opened()
        for name, seqs in told.items():
            # Whoever takes its place sends again what was not acknowledged.
            mine = ProducerId(ids[name], TOKEN, 1)
            patiently(
                lambda name=name, seqs=seqs, mine=mine: carry_out(
                    engine, append(mine, seqs[-1] + 1, messages(name, seqs[-1] + 1))
                )
            )
        tail = engine.tail()
        watching.stop()
        rows = reading.result(60)
    assert len(rows) == tail
    assert rows == engine.read(0, tail + 1).rows
    for substream in (0, 1):
        found = [text.split(".") for text in texts(engine, substream)]
        for name, seqs in told.items():
            assert [(int(seq), int(part)) for who, seq, part in found if who == name] == [
                (seq, part)
                for seq in range(1, seqs[-1] + 2)
                if seq % 2 == substream
                for part in range(3)
            ]
    for each in ids.values():
        assert carry_out(engine, retire(each)) >= 11


@pytest.mark.parametrize("name", RESTARTED)
def test_a_server_that_is_killed_in_the_middle_loses_nothing(name, request, stack):
    """Who writes just goes on, and what was acknowledged is there once (L2, L3)."""
    server = request.getfixturevalue(f"own_{name}")
    url = server.url(log=secrets.token_hex(8), timeout_s=2)
    create_engine(url, {}).close()
    written = [0, 0, 0]
    stop = threading.Event()

    def write(number):
        engine = stack.enter_context(closing(open_engine(url)))
        mine = producer(engine)
        while not stop.is_set():
            seq = written[number] + 1
            work = [message(f"{number}.{seq}")]
            patiently(lambda seq=seq, work=work: carry_out(engine, append(mine, seq, work)))
            written[number] = seq

    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write, number) for number in range(3)]
        try:
            for _ in range(2):
                before = min(written)
                until(lambda before=before: min(written) > before + 5, "they write", 60)
                RESTARTED[name](server)
            before = min(written)
            until(lambda before=before: min(written) > before + 5, "they go on", 60)
        finally:
            stop.set()
        for each in writing:
            each.result(120)
    engine = stack.enter_context(closing(open_engine(url)))
    found = [tuple(map(int, text.split("."))) for text in texts(engine)]
    for number, count in enumerate(written):
        assert [seq for who, seq in found if who == number] == list(range(1, count + 1))
