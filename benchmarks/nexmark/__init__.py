"""NEXMark over the log, by Spark: the queries, and what they cost (DESIGN-LOG §16).

- ``events``: made of a seed; ``schemas``: the streams' columns
- ``queries``: Q1 to Q8, as stages; ``answers``: what they have to give, by DuckDB
- ``sides``: a log and a Kafka as Spark has them; ``streams``: as programs without Spark do
"""
