"""A log that is opened over gRPC is the same log (issue 17, DESIGN-LOG §12, §13)."""

import itertools

import sharedlog


def test_published_is_followed(log, behind):
    """Over gRPC as where the log lives, at the same positions (DESIGN-LOG §13, C3)."""
    behind.stream("orders", 4)
    placed = [log.publish("orders", f"{n}", key=f"{n}") for n in range(20)]
    with log.follow("orders") as orders:
        found = list(itertools.islice(orders, 20))
    assert [each.position for each in found] == placed
    assert [each.text for each in found] == [f"{n}" for n in range(20)]
    with behind.follow("orders") as orders:
        assert list(itertools.islice(orders, 20)) == found
    assert sharedlog.Position.parse(str(placed[3])) == placed[3]
