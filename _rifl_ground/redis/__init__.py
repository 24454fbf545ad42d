"""Redis, as all use it who keep something there (extra ``rifl-grpc[redis]``).

- ``address``: URLs; ``clients``: connections, to servers with the ``settings`` that they need.
- ``lua``: scripts; ``rights``: what their user may do; ``failures``: which errors count.
"""
