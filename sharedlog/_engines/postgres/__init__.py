"""A log in PostgreSQL: for the processes of several machines (DESIGN-LOG §12).

- ``opening``: by URL; ``engine``: the log, by functions of the ``schema`` (``sql/``);
  ``joining``: appends on the ``applications``' own connections;
  ``joined_commits``: in transactions of a consumer's store.
- ``connection``: statements to one log, and whether the server is still the one
  that the log was written on; ``doctor``: a look before an opening.
"""
