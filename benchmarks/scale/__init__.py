"""How much one server holds, and what that costs; ``python -m benchmarks.scale``."""
