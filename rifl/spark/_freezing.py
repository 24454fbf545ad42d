"""Modules that a Python worker of Spark's has loaded, kept from the collector of garbage.

Spark has its workers collect garbage after each task, each planning and each commit
(``pyspark.daemon``). With the modules that Arrow and pandas bring that takes 20 ms of a core each
time, half a dozen times in a micro-batch.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter

_COLLECTS = "pyspark.daemon"
# Spark loads some of what it needs when the first task of a kind is over.
_TIMES = 2
# How often this process has done what.
_done: Counter[str] = Counter()


def freeze(what: str) -> None:
    """Freeze what this worker of Spark's has loaded (``gc.freeze``), after its work.

    ``what``: one of the few things that a worker does, each of which loads something; after the
    first two times. A frozen object without references is freed as before; a cycle is not.
    """
    if _done[what] < _TIMES and _is_worker():
        _done[what] += 1
        # Else what is garbage already would stay.
        gc.collect()
        gc.freeze()


def _is_worker() -> bool:
    """Whether Spark's daemon forked this process: no other process is touched."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == _COLLECTS
