"""The main job, end to end: a bank under faults, counted three times.

``python -m examples.demo``, or ``make demo``.

- ``payments``: what is paid; ``callers``: by whom; ``run``: one run under faults.
- ``audit``: what the books say afterwards; ``report``: what is printed;
  ``picture``: its table, for the README.
"""
