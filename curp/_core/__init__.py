"""The rules of a group: no I/O, no threads, no clock, no randomness."""
