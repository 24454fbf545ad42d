"""PostgreSQL, as all use it who keep something there (extra ``rifl-grpc[postgres]``).

- ``address``: URLs; ``connections``: pools, and single ones, to servers with the ``settings`` that
  they need; ``sessions``: lent to one statement at a time; ``listener``: of a channel.
- ``poolers``: what may stand between; ``doctor``: a look at a server before a start.
- ``owned``: transactions in which other code runs, and what becomes of them; ``marked``: the
  same on psycopg's connections; ``lent``: connections and cursors that do not end them;
  ``riders``: what other libraries have travel with their commit.
"""
