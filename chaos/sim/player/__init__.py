"""A player in the simulator: a log, two processes that may lead, and three targets.

What runs is the product: the player's leading, main stream and courses, and the target's lanes
and rules, on an event loop of asyncio in virtual time (DESIGN-LOG §15). What is simulated is
outside of them: the log's engine, gRPC, the targets' stores, handlers, and processes that die.

- ``schedule``: what is published and what goes wrong, drawn from a seed.
- ``cast``: what all processes of a run share.
- ``player``: a process that may lead; ``log_calls``: what it asks of the log.
- ``network``: what is between players and targets.
- ``target``: a target's processes; ``store``: its rows and effects.
- ``operator``: who pauses, resumes, skips and replays.
- ``judge``: what each target must have been called with; ``told``: what rows of the log say.
- ``run``: one schedule.
"""
