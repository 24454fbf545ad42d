"""Replicated groups (DESIGN §7): durable in one round trip, exactly once through leader changes."""
