"""The report says how much of the cores' code the simulator reaches."""

from __future__ import annotations

import re

import pytest

from chaos.sim.__main__ import main
from chaos.sim.code_coverage import CORES


@pytest.mark.slow
def test_the_report_says_what_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    """Statements are counted for each core, imports included, and what no schedule uses is not."""
    assert main(["--runs", "1", "--deployment", "memory", "--jobs", "1", "--coverage", "1"]) == 0
    said = capsys.readouterr().out
    shares = {
        core: (int(reached), int(there))
        for core, reached, there in re.findall(r"^  (\S+): (\d+) of (\d+) ", said, re.MULTILINE)
    }
    assert set(shares) == set(CORES)
    assert 0.4 < shares["rifl/core"][0] / shares["rifl/core"][1] < 1
    # Nothing of one server imports a group's core.
    assert shares["curp/_core"][1] > 500
    assert re.search(r"call_flow [5-9]\d%", said)
