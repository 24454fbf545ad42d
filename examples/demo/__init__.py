"""The main job, end to end: a bank under faults, counted three times."""
