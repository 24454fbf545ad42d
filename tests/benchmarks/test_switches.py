"""The sleeps and wake-ups of a call's threads, counted (benchmarks.switches)."""

from __future__ import annotations

import pytest

from benchmarks.switches import futexes_of, measure

_STRACE = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
100.00    0.001204           4       301        12 futex
------ ----------- ----------- --------- --------- ----------------
100.00    0.001204           4       301        12 total
"""


@pytest.mark.long
@pytest.mark.parametrize("flavor", ["sync", "aio"])
def test_sleeps_of_both_ends_are_counted(flavor: str) -> None:
    """Whoever waits for an answer sleeps: server and client, on every side."""
    found = measure(flavor, 1, 2, 0.05)
    assert set(found) == {"header", "ours", "constant"}
    for switches in found.values():
        assert switches.server_voluntary > 0
        assert switches.client_voluntary > 0


def test_what_strace_counted_is_read() -> None:
    """The calls, not the errors; none where no thread made any."""
    assert futexes_of(_STRACE) == 301
    assert futexes_of(_STRACE.replace("        12 futex", "           futex")) == 301
    assert futexes_of("") == 0
