"""The house: how the product's modules import each other, measured and drawn from its files.

- ``imports``: every module and what it imports, read from the source; nothing is run.
- ``figures``: what issue and closing notes compare: modules, lines, public names, circles.
- ``way``: the files and frames of one call.
- ``reference``: the pages of public names and commands; ``operating``: of events and metrics;
  ``bounds``: of bounds; ``prose``: texts of the code as Markdown.
- ``picture``: the packages on their floors, as SVG (``docs/house.svg``).

``python -m benchmarks.house`` prints the figures; ``make house`` draws the picture anew.
"""
