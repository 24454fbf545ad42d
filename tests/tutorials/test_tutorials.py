"""The tutorials, each typed from an empty folder as it is printed (Spark's: ``tests/spark``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.postgres_server import PostgresServer
from tests.helpers.typed import typed

pytestmark = pytest.mark.slow


def test_a_payment_service_survives_kills(tmp_path: Path) -> None:
    """payment-service.md: server and client are killed, and each invoice is paid once."""
    typed("payment-service.md", tmp_path)


def test_an_event_reaches_two_services(tmp_path: Path) -> None:
    """event-to-two-services.md: services and player are killed; each order arrives once."""
    typed("event-to-two-services.md", tmp_path)


def test_a_read_model_follows_a_stream(tmp_path: Path, shared_postgres: PostgresServer) -> None:
    """read-model.md: a process of the consumer is killed; each order is counted once."""
    with shared_postgres.connect(autocommit=True) as connection:
        connection.execute("CREATE DATABASE tutorial")
    typed("read-model.md", tmp_path, SHOP=shared_postgres.url().replace("/postgres", "/tutorial"))
