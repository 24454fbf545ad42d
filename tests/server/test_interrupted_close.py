"""An interrupt at a line of ``close``: called again it lets the store go."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

import rifl
from tests.helpers.at_a_line import Interrupted, at_a_line, bounded, interrupting

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def _walk(url: str, step: int) -> int:
    number, line = 1, None
    while line is None or line.came:
        try:
            dedup = rifl.Deduplicator(url, lock_timeout_s=0.1)
        except rifl.RiflError as error:
            raise AssertionError(f"interrupted at {line}: {error!r}") from error
        with at_a_line(number, interrupting) as line, suppress(Interrupted):
            dedup.close()
        dedup.close()
        dedup.close()
        number += step
    return number


@pytest.mark.parametrize("step", [17, pytest.param(1, marks=pytest.mark.long)])
def test_an_interrupted_close(tmp_path: Path, step: int) -> None:
    """The next process can open the file (DESIGN §6, §9)."""
    assert bounded(lambda: _walk(f"sqlite:///{tmp_path}/s.db", step), 100) > 100
