"""What both sides of a call share.

- ``identity``, ``call``, ``outcome``, ``record``, ``raised``: what a call is, and how it ended.
- ``bit_vec_queue``, ``completed_set``: the bit vectors that the trackers count in.
- ``errors``, ``invariant``, ``observer``, ``stream_end``.
"""
