"""NEXMark over the log, by Spark: the queries, and what they cost (DESIGN-LOG §16).

- ``events``: made of a seed; ``schemas``: the streams' columns
- ``queries``: Q1 to Q8, as stages; ``answers``: what they have to give, by DuckDB
- ``sides``: a log and a Kafka as Spark has them, ``plain``: the log without its guarantee;
  ``streams``: as programs without Spark do
- ``driver``: a chain of queries as a process; ``fleet``: drivers that are killed
- ``demo``: answers under failures, ``make demo-nexmark``
- ``load``: events at a rate, and how late rows are; ``rising``: all systems in turns at such rates,
  ``saturation``: which ones, and what they tell
- ``alone``: sources and sinks for themselves; ``batches``: the parts of a micro-batch,
  ``steps``: those on the log; ``parts``: the systems that ``python -m benchmarks.nexmark`` measures
"""
