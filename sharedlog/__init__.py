"""One shared log: an event that was appended once is read once, in order (DESIGN-LOG §10).

- ``_core``: the rules, without I/O (DESIGN-LOG §12, §13).
- ``_engines``: where a log lives.

Imports nothing of rifl.
"""
