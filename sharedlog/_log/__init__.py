"""The log as programs use it: threads, clocks and randomness around the rules of ``_core``.

- ``log``: ``Log``, whose methods delegate to the modules below; ``opening`` creates and opens it.
"""
