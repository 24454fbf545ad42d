"""Consumers: functions that consume a stream, change a database and publish (DESIGN-LOG §14).

- ``consumer``: ``sharedlog.Consumer``, and where a new one begins; ``handlers``: its functions;
  ``effects``: what they get, ``savepoints``: a part of that, ``lending``: not for longer than they
  run.
- ``working``: the shards of one process; ``turning``: turn after turn, ``lanes``: several at once,
  ``event_loop``: async functions; ``sharing``: which those are; ``owned``: one of them;
  ``carrying``: its steps, ``running``: those of handlers, ``hanging``: which do not return;
  ``settling``: what it owes the log; ``events``: what is told, ``observing``: to observers.
- ``calling``: calls of handlers to other services; ``channels``: what stubs get for them;
  ``services``: the ways to services; ``kept_calls``: what is kept of calls, ``call_rows``: as
  rows of a database.
- ``membership``: that the process is there, said again and again; ``evidence``: that another one
  has ended.
- ``awaiting``: the wait until a consumer has handled a published message.
- ``in_log``: no database but the log; ``state``: what handlers have of it, ``state_view``: what
  other programs have.
- ``store``: the interface of a store; ``opening``: by its URL; ``configuring``: the user's way to
  set its connections up; ``tables``: its row; ``sqlite``,
  ``postgres``, ``redis``: where it is; ``redis_transaction``: what handlers get of the last,
  ``postgres_session``: a session of the one before;
  ``joined_append``: an append in the transaction of a store; ``sqlalchemy``: connections over
  those of SQL.
"""
