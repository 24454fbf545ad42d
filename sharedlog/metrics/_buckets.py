"""Buckets of the observers' histograms, in seconds."""

from __future__ import annotations

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Of how long followers are without a message.
WAITS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
