"""rifl's channel in web servers and task queues: docs/recipes.md."""
