"""Faults on purpose: what the demo, the fault runs and the tests break things with."""
