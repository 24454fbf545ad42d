"""``python -m benchmarks.log``: what appends cost, and how soon a follower hears of them."""
