"""docs/how-to/recipes.md shows the examples as they are; test_examples.py runs them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.helpers.pages import page

ROOT = Path(__file__).parents[2]
PAGE = page("recipes.md").read_text()
EXAMPLES = {path.name: path.read_text() for path in (ROOT / "examples/recipes").glob("*.py")}


def test_what_the_page_shows_is_in_an_example() -> None:
    """Each block of Python stands in an example word for word, so that it has been run."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    assert [block for block in blocks if not any(block in text for text in EXAMPLES.values())] == []


def test_every_recipe_is_on_the_page() -> None:
    """Each example that can be run is linked from the page."""
    runnable = [name for name, text in EXAMPLES.items() if "def main()" in text]
    assert len(runnable) >= 4
    assert [name for name in runnable if f"`examples/recipes/{name}`" not in PAGE] == []
