"""The nouns that both sides of a call share.

- ``identity``, ``call``, ``record``: what a call is, and how it ended.
- ``bit_vec_queue``, ``completed_set``: the bit vectors that the trackers count in.
- ``errors``, ``reasons``, ``codes``: what is refused, what each reason and gRPC code says.
- ``invariant``, ``observer``, ``stream_end``.
"""
