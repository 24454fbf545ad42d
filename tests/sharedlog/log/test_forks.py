"""A forked child has its own log and its own producers, or none (DESIGN-LOG §12, L3)."""

import pytest

from tests.sharedlog.log.forking import forks
from tests.sharedlog.places import SHARED, url_of


def test_a_child_is_refused_what_it_inherited(url):
    """Even while a thread of the parent publishes: nobody hangs (L3)."""
    forks("publisher", url)


def test_a_child_is_refused_the_follower_that_it_inherited(url):
    """And so is opening a file that the parent has open (L3)."""
    forks("follower", url)


def test_a_child_is_refused_what_a_loop_of_its_parent_had(url):
    """Read ahead, a transaction's turn, threads: it is told, and waits for nobody (L3)."""
    forks("aio", url)


@pytest.mark.parametrize("engine", SHARED)
def test_parent_and_child_publish_by_logs_of_their_own(engine, tmp_path, request):
    """Each opened after the fork; their producers are two (L3)."""
    forks("both", url_of(engine, tmp_path, request.getfixturevalue))


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_child_appends_nothing_in_a_transaction_that_it_inherited(engine, tmp_path, request):
    """It is refused before the connection is used; its parent's transaction commits (L3)."""
    forks("append_in", url_of(engine, tmp_path, request.getfixturevalue))
