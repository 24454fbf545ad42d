"""Runnable, self-verifying examples: ``python -m examples.<name>``.

Which one shows what: docs/how-to/examples.md.

- Servers: ``wrap_server``, ``wrap_aio_server``, ``tokens``, ``mutual_tls``, ``atomic_record``,
  ``sqlalchemy_service``, ``outbox``.
- Callers: ``retries_and_hedging``, ``header_only_client``, ``batched_rows``, ``http_front``,
  ``recipes``.
- Several servers: ``replicas_over_redis``, ``replicated_bank``; ``deploying``: what they run in.
- Whole services: ``bank``, ``demo``, ``flights``. A log: ``shared_log``,
  ``read_model``, ``redis_cache``, ``mailed_orders``, ``changed_code``, ``delivered_orders``,
  ``payments``, ``pipeline``.
- Parts: ``server_process``, ``redis_process``, ``checking``.
"""
