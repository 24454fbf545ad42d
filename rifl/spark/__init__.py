"""Spark executors calling deduplicated services, each row once (``rifl[spark]``)."""

__all__: list[str] = []
