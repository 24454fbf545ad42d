"""The log as programs use it: threads, clocks and randomness around the rules of ``_core``.

- ``log``: ``Log``, whose methods delegate to the modules below; ``opening`` creates and opens it,
  ``place`` is what the others need of it; ``observing``: who watches is told;
  ``restoring``: an operator's word after a backup.
- ``placing``: into which substream a message goes, in what envelope.
- ``publisher``: single messages of any thread; ``appender`` appends them; ``resending``: what is
  not answered is sent again; ``sender``: one act of a producer after the other.
- ``append_in``: messages in transactions of the application's.
- ``producer``, ``transaction``: what readers see all at once; ``sweeper``: rolls back what crashed
  programs left.
- ``following``: committed messages; ``trimming``: removes what is not needed.
- ``rounds``: a thread that sweeps or trims while it is the one that does.
"""
