"""The ground floor: what the other packages need of a process and of databases.

It is private, and imports none of them.

- ``forks``: refuses what a forked child inherits; ``log``: events that go where the
  application's own logs go; ``events``: a row of their tables.
- ``refusals``: those that more than one package raises, with their root and outcomes.
- ``audit``: what operators do.
- ``threads``: in which what blocks runs beside an event loop; ``loops``: how others tell it.
- ``owned_lock``: locks and leads that refuse a call within such a call; ``places``: a bounded
  number of them, of which an interrupt loses none.
- ``drivers``: applications' connections, out of what holds their transactions.
- ``loans``: what user code is lent for one run, and refuses what that left running.
- ``counting``: errors that count as attempts of a message, and those that pass.
- ``exports``: packages' public names, imported when they are asked for.
- ``signals``: taken while a process serves; ``scraping``: its metrics; ``exits``: its exit codes;
  ``version``: which release it is.
- ``files``: made private, and opened through no link.
- ``plaintext``: which connections secrets stay off.
- ``options``: of several commands; ``numbers``: counts that users give.
- ``parsing``: protobuf's messages, counted before they are parsed.
- ``seldom``: warnings that a peer could cause without end.
- ``system``: what each operating system has its own means for.
- ``texts``: what others said, and tables, as people are shown them.
- ``pings``: options of gRPC servers: clients may ping, and have so many connections.
- ``portions``: what one caller may take of what callers share.
- ``tls``: of commands that listen, and certificates that are read again.
- ``findings``: what a look at a store or log finds before a start.
- ``urls``: splits the URLs of servers; ``servers``: what they all have in common.
- ``sqlite``, ``postgres``, ``redis``: one layer for all that keep something there.
"""
