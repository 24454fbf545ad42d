"""A log in the simulator: writers, sweepers and followers around one simulated engine.

What runs are the rules of ``sharedlog._core``, step by step (DESIGN-LOG §12, §13); what is
simulated is what is between them and the engine's one atomic step, and the processes that die.

- ``schedule``: appends and faults, drawn from a seed.
- ``server``: the engine's process: requests that are lost, late or copied, restored backups.
- ``course``: one rule on its way, run again after a lost reply.
- ``cast``: what all processes of a run share.
- ``writer``, a ``publisher``: producers, one after another; its calls are ``single_append``,
  ``long_transaction`` and ``joint_transaction``. ``relay``: two that share a name; ``sweeper``: an
  operator who retires; ``keeper``: who trims, and who sweeps.
- ``application``: who appends in transactions of its own, by a ``session`` of the log's database.
- ``follower``: committed reads from a position that is kept, or by a hold.
- ``oracle``: what must be in the log; ``onlooker``: what may happen when; ``series``: what each
  follower must have read.
- ``run``: one schedule.
"""
