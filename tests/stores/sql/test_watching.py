"""The thread that tells when calls of other replicas have ended (DESIGN §6)."""

from __future__ import annotations

import threading

from rifl._stores.sql.backend import Watching
from tests.helpers.waiting import DEADLINE_S, until


def test_it_ends_though_it_looks_for_calls_just_as_it_is_stopped():
    """It looks at ``closing`` again after it cleared its event: else a close hangs (DESIGN §9)."""

    class Closing(threading.Event):
        """Is set, and the thread told to end, just after it was looked at."""

        def wait(self, timeout=None):
            found = self.is_set()
            self.set()
            stopping.start()
            assert told.wait(DEADLINE_S)
            return found

    closing, told = Closing(), threading.Event()
    watching = Watching(lambda calls: set(), lambda token: None, closing)
    some = watching._some
    tell = some.set

    def set_and_tell():
        tell()
        told.set()

    some.set = set_and_tell
    stopping = threading.Thread(target=watching.stop, daemon=True)
    watching.start()
    tell()
    until(lambda: stopping.ident, "it is stopped")
    stopping.join(DEADLINE_S)
    assert not stopping.is_alive()
