"""A served log is watched and sealed by its clients; the server has no key (DESIGN-LOG §12)."""

import pytest
from cryptography.fernet import Fernet
from prometheus_client import CollectorRegistry

import sharedlog
from sharedlog.metrics import PrometheusLogObserver

FERNET = Fernet(Fernet.generate_key())


def test_clients_seal_and_the_server_has_no_key(behind, url):
    """Envelopes travel sealed; one name's content is recognised, however it is sealed (L3)."""
    keys = {
        "seal": lambda data, _: FERNET.encrypt(data),
        "unseal": lambda data, _: FERNET.decrypt(data),
    }
    with sharedlog.open(url, **keys) as log:
        log.stream("s", 1)
        log.publish("s", b"one", key="k")
        for _ in range(2):
            with log.producer("relay").transaction(seq=1, follows=0) as transaction:
                transaction.publish("s", b"two")
        with log.follow("s") as following:
            assert [each.value for each in following.poll(10)] == [b"one", b"two"]
        assert [each.value for each in log.read("s", 0)] == [b"one", b"two"]
    assert [each.sealed for each in behind.read("s", 0)] == [True, True]


def test_clients_are_watched(url):
    """Appends, refusals, and what followers got; the log itself is the server's (DESIGN §9)."""
    registry = CollectorRegistry()
    with sharedlog.open(url, observer=PrometheusLogObserver(registry)) as log:
        log.stream("s", 1)
        log.publish("s", b"one")
        with pytest.raises(sharedlog.NoSuchStream):
            log.publish("none", b"one")
        with log.follow("s", name="billing") as following:
            assert len(following.poll(10)) == 1

        def value(name, **labels):
            return registry.get_sample_value(f"sharedlog_{name}", {"log": url, **labels})

        assert value("appends_total") == 1
        assert value("refused_total", reason="NoSuchStream") == 1
        assert value("delivered_total", stream="s") == 1
        with log.producer().transaction() as transaction:
            transaction.publish("s", b"two")
            transaction.publish("s", b"three")
            transaction.pend()
        assert (value("appends_total"), value("appended_entries_total")) == (3, 4)
        assert value("append_seconds_count") == 3
        assert value("reachable") is None
