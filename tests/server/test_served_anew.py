"""A call that another replica took over while it ran is served anew (DESIGN §4)."""

from __future__ import annotations

import pytest

import rifl
from rifl._server import aio, sync
from rifl.core._serving import serving
from tests.helpers.raw import RawClient
from tests.helpers.servers import KINDS, generic, serve

_METHOD = "/test.Anew/Act"


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_taken_over_and_given_up_elsewhere_runs_once_more(kind, monkeypatch):
    """The arrival has its answer, and nothing is left running, when nobody else has run it (§4).

    The shells drove its last steps without what runs its handler: the call was answered by an
    error of ours, and its attempt was in progress for ever.
    """
    runs = []

    def taken_over(store, attempt, handled, remaining_s=None):
        if len(runs) > 1:
            return serving.conclude(store, attempt, handled)
        store.abandon(attempt)
        return serving.serve(store, attempt.call, attempt.policy)

    monkeypatch.setattr(sync, "end", taken_over)
    monkeypatch.setattr(aio, "end", taken_over)

    def act(request, context):
        runs.append(request)
        return b"run %d" % len(runs)

    async def act_async(request, context):
        return act(request, context)

    handler = generic("test.Anew", {"Act": act_async if kind == "aio" else act})
    dedup = rifl.Deduplicator("memory:", methods={_METHOD: "plain"})
    with serve(kind, [handler], dedup=dedup) as served, RawClient(served.address) as client:
        reply = client.call(_METHOD, b"x", 1)
        assert (reply.response, reply.outcome) == (b"run 2", "")
        again = client.call(_METHOD, b"x", 1, attempt=2)
        assert (again.response, again.outcome) == (b"run 2", "replayed")
