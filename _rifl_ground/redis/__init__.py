"""Redis, as all use it who keep something there (extra ``rifl-grpc[redis]``).

- ``address``: URLs; ``clients``: connections, to servers with the ``settings`` that they need;
  ``bounded``: some that wait no longer than their callers; ``cluster``: redis-py's errors there.
- ``lua``: scripts; ``rights``: what their user may do; ``failures``: which errors count;
  ``doctor``: a look at a server before a start.
"""
