"""The protocol rules: no I/O, no threads, no clock, no randomness."""
