"""The log for asyncio: a thin shell over ``_log``, whose calls that block run in threads.

- ``log``: what ``sharedlog.aio.open`` returns; ``threads``: where it blocks.
- ``publisher``: single messages of any task; ``producer``: transactions; ``outbox``: those of
  the application's database; ``following``: committed messages, as they come;
  ``rounds``: the threads that sweep and trim.
"""
