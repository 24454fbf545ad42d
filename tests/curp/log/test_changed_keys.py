"""Keys of a group's log that were changed in its store: each is damage (DESIGN-LOG §12, §18)."""

from __future__ import annotations

from contextlib import closing

import pytest

from curp.log import open_engine
from tests.curp.log.conformance import Writer
from tests.curp.log.damage.place import verified
from tests.helpers.store_keys import StoreKeys, check_changed, check_swapped


@pytest.mark.parametrize("log", ["sqlite", "redis", "postgres", "etcd"], indirect=True)
@pytest.mark.parametrize("how", ["changed", "swapped"])
def test_a_changed_key_is_damage(log, how, request):
    """Of every kind, also where it still makes sense: ``curp log verify`` names it."""
    server = None if log.engine == "sqlite" else request.getfixturevalue(f"shared_{log.engine}")
    keys = StoreKeys(log.url, server)

    def problems():
        return [told] if (told := verified(log.url)) else []

    with closing(open_engine(log.url)) as engine:
        writer = Writer(engine)
        writer.append(b"one", b"two", tags=("t",), metadata={"k": b"v"})
        writer.snapshot(1, b"three", b"four")
        engine.trim(1, configuration=writer.configuration)
        kinds = {key.partition("/")[0] for key in keys.read()}
        assert kinds >= {"configuration", "leader", "lease", "metadata", "pieces"}
        assert kinds >= {"snapshot", "tail", "trimmed"}
        if how == "changed":
            check_changed(keys, engine._engine, problems, _next)
        else:
            check_swapped(keys, engine._engine, problems)


def _next(_, value):
    """The next number, of most; of others another last byte."""
    return value[:-1] + bytes([(value[-1] + 1) % 256])
