"""rifl's channel in web servers and task queues: docs/how-to/recipes.md.

- ``gunicorn_front`` with ``gunicorn_conf``, ``fastapi_front``, ``django_front``, ``celery_task``:
  the recipes, one a file.
- ``customers``: keys that customers choose; ``statuses``: errors as HTTP statuses;
  ``bank_server``: what the recipes call; ``web_process``: one of them as a process.
"""
