"""A log in Redis: for processes of several machines (DESIGN-LOG §12).

- ``engine``: the log, by ``log_scripts`` (in Lua) over a ``connection``.
- ``opening``: its URL; ``doctor``: a look before that.
- ``server``: scripts sent to a server that keeps a log.
"""
