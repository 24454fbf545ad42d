"""Followers with a hold that are killed go on where they were (DESIGN-LOG §12, L6; C4)."""

from datetime import timedelta
from functools import partial

import pytest

import sharedlog
from tests.helpers.forked import Forked
from tests.helpers.waiting import until
from tests.sharedlog.places import SHARED, url_of

pytestmark = pytest.mark.faults


def _written(out, wanted):
    return len(out.read_text().splitlines()) >= wanted


@pytest.mark.slow
@pytest.mark.parametrize("engine", SHARED)
def test_followers_that_are_killed_miss_nothing_while_the_log_is_trimmed(engine, tmp_path, request):
    """At most the message that was under way comes twice; the trim stays behind the hold."""
    url = url_of(engine, tmp_path, request.getfixturevalue)
    out = tmp_path / "out"
    out.touch()
    with sharedlog.create(url) as log:
        log.stream("s", 3, timedelta(0))
        published = 0
        for life in range(3):
            running = Forked(["tests.sharedlog.log.follower", url, str(out)])
            try:
                for _ in range(20):
                    log.publish("s", f"{published}")
                    published += 1
                wanted = 15 * (life + 1)
                until(partial(_written, out, wanted), f"{wanted} messages")
                log.trim()
            finally:
                running.kill()
                running.stdout.close()
                running.wait(30)
        with log.follow("s", name="me") as following:
            rest = []
            while len(out.read_text().splitlines()) + len(rest) < published:
                rest += following.poll(10)
            rest += following.poll()
        seen = [int(line) for line in out.read_text().splitlines()] + [
            int(each.text) for each in rest
        ]
    doubled = [each for at, each in enumerate(seen) if each in seen[:at]]
    assert sorted(set(seen)) == list(range(published))
    assert len(doubled) <= 3
    assert [each for at, each in enumerate(seen) if each not in seen[:at]] == list(range(published))
