"""gunicorn's settings: each worker opens its channel after the fork, and closes it."""

from __future__ import annotations

from typing import Any

__all__ = ["post_fork", "preload_app", "worker_exit", "workers"]

preload_app = True  # the application is imported once, in the master, before the fork
workers = 2


def post_fork(server: Any, worker: Any) -> None:
    """Connect, in the worker."""
    from examples.recipes import gunicorn_front

    gunicorn_front.connect()


def worker_exit(server: Any, worker: Any) -> None:
    """Close the worker's channel."""
    from examples.recipes import gunicorn_front

    gunicorn_front.disconnect()
