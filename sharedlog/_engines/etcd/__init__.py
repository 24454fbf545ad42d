"""A log in etcd: a quorum of machines keeps it (DESIGN-LOG §12, §18).

- ``engine``: the log, on a ``connection`` to ``keys`` of its own, and what removes trimmed rows;
  ``records``: appends.
- ``commits``: what is written; ``reading``; ``budget``: how much; ``opening``: URLs.
- ``client``, ``calls``, ``address``: etcd itself, and its URLs; ``cluster``: transactions there.
- ``watch``: who hears of new entries; ``compaction``,
  ``defragmenting``: what makes room; ``doctor``: a look before an opening.
"""
