"""A Kafka of one broker, whose every message is synced, and how it is published to and read."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chaos.ports import free_port

__all__ = ["IdempotentPublisher", "KafkaServer", "TransactionalPublisher", "read_kafka"]

_TOPIC = "orders"
_PARTITIONS = 8
_START_S = 60.0
# As Kafka's own scripts start it.
_JAVA = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Djava.awt.headless=true",
)
_FLUSH = "log.flush.interval.messages=1"
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
log.dirs={folder}/data
{flush}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class KafkaServer:
    """A broker on 127.0.0.1 that is its own controller (KRaft), run from a folder of jars.

    ``topics``: made at the start, each of so many partitions. ``durable``: it syncs each message,
    else as it does by default. ``within``: where its files are, else a temporary folder.
    """

    def __init__(
        self,
        jars: Path,
        topics: Mapping[str, int] | None = None,
        *,
        durable: bool = True,
        within: Path | None = None,
    ) -> None:
        self._topics = {_TOPIC: _PARTITIONS} if topics is None else topics
        self._folder = Path(tempfile.mkdtemp(prefix="rifl-kafka-", dir=within))
        self.port = free_port()
        settings = self._folder / "server.properties"
        settings.write_text(
            _SETTINGS.format(
                port=self.port,
                controller=free_port(),
                folder=self._folder,
                partitions=_PARTITIONS,
                flush=_FLUSH if durable else "",
            )
        )
        home = os.environ.get("JAVA_HOME")
        java = [f"{home}/bin/java" if home else "java", *_JAVA, "-cp", f"{jars}/*"]
        self._process: subprocess.Popen[bytes] | None = None
        try:
            cluster = self._output([*java, "kafka.tools.StorageTool", "random-uuid"]).strip()
            self._output(
                [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
            )
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*java, "kafka.Kafka", str(settings)], stdout=log, stderr=log
                )
            self._make_topics()
        except BaseException:
            self.stop()
            raise

    @property
    def where(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        """Where its messages are: a folder a partition."""
        return self._folder / "data"

    def stop(self) -> None:
        """End it and remove all it has written."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _output(self, command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_START_S)
        if done.returncode:
            raise RuntimeError(f"Kafka's {command[-1]}: {done.stdout}{done.stderr}")
        # Its logging has no settings, and says so before.
        return done.stdout.splitlines()[-1] if done.stdout else ""

    def _make_topics(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.where, "log_level": 0})
        end, pause = time.monotonic() + _START_S, threading.Event()
        for topic, partitions in self._topics.items():
            while True:
                try:
                    made = admin.create_topics([NewTopic(topic, partitions, 1)])
                    made[topic].result(_START_S)
                except KafkaException as error:
                    if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                        # By a request whose answer was late.
                        break
                    died = self._process is None or self._process.poll() is not None
                    if died or time.monotonic() > end:
                        raise RuntimeError(f"no Kafka: {self._log.read_text()[-2000:]}") from error
                    pause.wait(0.2)
                else:
                    break


class IdempotentPublisher:
    """Publishes each message by itself: ``acks=all``, and once however often it is sent."""

    def __init__(self, where: str, number: int, **settings: Any) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": where,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
                **settings,
            }
        )
        self._turns = itertools.count(number)
        self._error: Any = None

    def publish(self, body: bytes) -> None:
        """Publish, and wait for the acknowledgement."""
        self._send(body)
        self._producer.flush()
        if self._error is not None:
            raise RuntimeError(f"Kafka: {self._error}")

    def close(self) -> None:
        """Let go."""
        self._producer.flush()

    def _send(self, body: bytes) -> None:
        partition = next(self._turns) % _PARTITIONS
        self._producer.produce(_TOPIC, body, partition=partition, on_delivery=self._delivered)

    def _delivered(self, error: Any, _: Any) -> None:
        self._error = self._error or error


class TransactionalPublisher(IdempotentPublisher):
    """Publishes each message in a transaction of its own."""

    def __init__(self, where: str, number: int) -> None:
        super().__init__(where, number, **{"transactional.id": f"publisher-{number}"})
        self._producer.init_transactions(30)

    def publish(self, body: bytes) -> None:
        """Publish, and commit."""
        self._producer.begin_transaction()
        self._send(body)
        self._producer.commit_transaction(30)


def read_kafka(where: str) -> Iterator[bytes]:
    """Follow what is committed, from now on."""
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": where,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(_TOPIC, each, OFFSET_END) for each in range(_PARTITIONS)])
    while True:
        found = consumer.poll(1.0)
        if found is not None and found.error() is None:
            yield found.value()
