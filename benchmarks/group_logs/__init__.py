"""Groups' logs measured, ``python -m benchmarks.group_logs``: appends, and how soon one hears."""
