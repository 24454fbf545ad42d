"""Prometheus metrics of a log, of consumers and of players (``rifl-grpc[metrics]``).

::

    sharedlog.open(url, observer=PrometheusLogObserver())

One observer may serve any number of logs; a second one needs a registry of its own.
docs/reference/api/metrics.md has all metrics.

- ``_log``, ``_player``, ``_consumer``: one observer each; ``_buckets``: those of their histograms.
"""

try:
    import prometheus_client  # noqa: F401 - asked for here, once for all of them
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError(
        "sharedlog.metrics needs the extra: pip install 'rifl-grpc[metrics]'"
    ) from error

from sharedlog.metrics._consumer import PrometheusConsumerObserver
from sharedlog.metrics._log import PrometheusLogObserver
from sharedlog.metrics._player import PrometheusPlayerObserver

__all__ = ["PrometheusConsumerObserver", "PrometheusLogObserver", "PrometheusPlayerObserver"]
