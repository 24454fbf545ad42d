"""Queries over a simulated log: Spark's drivers, tasks and commits, without Spark (DESIGN-LOG §16).

What runs are the rules of ``sharedlog._core.query`` and of the source; what is simulated is what
Spark does with them: checkpoints, runs, attempts of tasks, commits that are called twice.

- ``schedule``: rows and faults, drawn from a seed.
- ``publisher``: who writes what queries read.
- ``checkpoint``: what Spark keeps of a query; ``driver``: its runs, one after another.
- ``batch``: one plan of a batch: its tasks, their attempts, its commit; ``attempt``: one of them,
  which may outlive its driver; ``closer``: a commit, which may, too. ``parts``: what tasks have.
- ``job``: batch writes, by a name or without. ``sweeper``: who abandons silent plans.
- ``judge``: what must be in the log; ``onlooker``: who may append when; ``run``: one schedule.
"""
