"""A process that forks with a log open: ``... -m tests.sharedlog.engines.forking URL``.

Of its own, since whoever forks beside the threads of other tests' servers may wait in the child for
a lock that one of these held. Exits with 0 if the child was refused, and the parent goes on.
"""

import contextlib
import os
import sys

import pytest

from sharedlog._core.commit import Commit, NewEntry
from sharedlog._core.errors import LogStopped
from sharedlog._engines.engine import Engine
from sharedlog._engines.opening import open_engine


def main(url: str) -> int:
    """Fork, and have both try; the exit code."""
    commit = Commit(entries=(NewEntry(b"a"),))
    with contextlib.closing(open_engine(url)) as engine:
        before = engine.commit(commit)
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                _refused(engine, url, commit)
                code = 0
            os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            return 1
        return 0 if engine.commit(commit).first == before.last + 1 else 2


def _refused(engine: Engine, url: str, commit: Commit) -> None:
    engine.close()
    for use in (lambda: engine.commit(commit), engine.tail):
        with pytest.raises(LogStopped):
            use()
    if url.startswith("sqlite:"):
        # SQLite would mix up the locks of the two.
        with pytest.raises(LogStopped, match="fork"):
            open_engine(url)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
