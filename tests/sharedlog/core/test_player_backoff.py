"""The pause before a target is tried again (DESIGN-LOG §15, P4)."""

from sharedlog._core.player.backoff import LONGEST_S, Pauses


def _pause_s(pauses: Pauses) -> float:
    return pauses.of_target(1.0, failed=False, reached=True)


def test_a_target_whose_idle_connections_end_is_soon_connected_to_again() -> None:
    """A proxy lets go of each after a minute: no pause grows by that, however long it does so."""
    pauses = Pauses()
    first = _pause_s(pauses)
    for _ in range(100):
        pauses.connected()
        pauses.rested(60.0)
        assert _pause_s(pauses) == first


def test_a_target_whose_connections_end_at_once_is_tried_less_and_less() -> None:
    """Though nothing was in flight: it is no rest, and is told of each time."""
    pauses = Pauses()
    for _ in range(20):
        pauses.connected()
        pauses.rested(0.01)
        last = _pause_s(pauses)
    assert last == LONGEST_S
