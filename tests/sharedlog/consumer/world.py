"""A log with orders, a database, and a consumer that bills them; and what is to come of it."""

import json
import secrets
import sqlite3
from contextlib import closing

import psycopg

import sharedlog
from sharedlog._consumer.state import ShardState
from sharedlog._core.consumer.changelog import Changelog
from sharedlog._core.consumer.state import Changes


class SqliteDatabase:
    """A file of the application's."""

    def __init__(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "bills.db"
        self.url = f"sqlite:///{self.file}"

    def connect(self):
        return sqlite3.connect(self.file)

    def of(self, statement):
        return statement


class PostgresDatabase:
    """A schema of the run's server, of the test's own."""

    def __init__(self, server):
        name = f"app_{secrets.token_hex(6)}"
        with server.connect(autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        self.url = server.url(options=f"-csearch_path%3D{name}")

    def connect(self):
        return psycopg.connect(self.url)

    def of(self, statement):
        return statement.replace("?", "%s")


class World:
    """Orders of customers; a bill has the order, and its number among the customer's."""

    def __init__(self, place, orders=6, url="memory:", substreams=2, copies=0, **settings):
        """``place``: a directory, or a database; ``copies``: of an invoice, published with it."""
        self.database = place if hasattr(place, "connect") else SqliteDatabase(place)
        self.settings = settings
        self.substreams = substreams
        self.copies = copies
        self.log = sharedlog.create(url)
        self.log.stream("orders", substreams)
        self.log.stream("invoices", substreams=2)
        self.log.stream("copies", substreams=2)
        self.published = 0
        with closing(self.connect()) as connection, connection:
            connection.execute(
                "CREATE TABLE bill (id INTEGER, customer TEXT, number INTEGER, what TEXT)"
            )
        self.order(orders)
        # Customers whose orders the handler refuses; called with each order before it is billed.
        self.refused = set()
        self.looks = lambda order, effects: None

    def order(self, count):
        """Publish orders: most by themselves, two in one transaction, and one rolled back."""
        for at in range(count):
            self.published += 1
            value = json.dumps({"customer": f"c{at % 3}", "what": f"order {self.published}"})
            if at % 3 == 2:
                with self.log.producer().transaction() as transaction:
                    transaction.publish("orders", value, key=f"c{at % 3}")
                    self.published += 1
                    other = json.dumps({"customer": "c0", "what": f"order {self.published}"})
                    transaction.publish("orders", other, key="c0")
                transaction = self.log.producer().transaction()
                transaction.publish("orders", b"rolled back", key="c1")
                transaction.roll_back()
            else:
                self.log.publish("orders", value, key=f"c{at % 3}")

    def connect(self):
        return self.database.connect()

    def consumer(self, **settings):
        """A consumer, as another process would make it."""
        consumer = sharedlog.Consumer(
            self.log,
            "billing",
            ["orders"],
            self.database.url,
            **{**self.settings, **settings},
        )

        @consumer.on("orders", json.loads)
        def bill(order, effects):
            self.looks(order, effects)
            if order["customer"] in self.refused:
                raise ValueError(f"{order['customer']} is not billed")
            self.bill(order, effects)

        return consumer

    def bill(self, order, effects):
        self.take(effects.connection.execute, order, effects)

    def take(self, execute, order, effects):
        """Bill an order: what is there decides what comes, so that a repetition shows."""
        customer, what = order["customer"], order["what"]
        of = self.database.of
        (bills,) = execute("SELECT count(*) FROM bill").fetchone()
        found = execute(of("SELECT count(*) FROM bill WHERE customer = ?"), (customer,))
        (count,) = found.fetchone()
        execute(of("INSERT INTO bill VALUES (?, ?, ?, ?)"), (bills, customer, count + 1, what))
        self.publish({"customer": customer, "number": count + 1, "what": what}, effects)

    def publish(self, invoice, effects):
        customer = invoice["customer"]
        effects.publish("invoices", json.dumps(invoice), key=customer)
        for _ in range(self.copies):
            effects.publish("copies", json.dumps(invoice), key=customer)

    def bills(self):
        """The effects in the database, in their order by customer."""
        with closing(self.connect()) as connection:
            rows = connection.execute("SELECT customer, number, what FROM bill ORDER BY id")
            return by_customer(rows)

    def invoices(self, stream="invoices"):
        """The messages that were published, in their order by customer."""
        found = [
            json.loads(each.value)
            for substream in range(2)
            for each in self.log.read(stream, substream)
        ]
        return by_customer((each["customer"], each["number"], each["what"]) for each in found)

    def expected(self):
        """What one run over the committed messages leaves, without a consumer."""
        found = {}
        for substream in range(self.substreams):
            for message in self.log.read("orders", substream):
                order = json.loads(message.value)
                if order["customer"] not in self.refused:
                    rows = found.setdefault(order["customer"], [])
                    rows.append((len(rows) + 1, order["what"]))
        return found

    def check(self):
        """Effects and outputs are those of one run."""
        expected = self.expected()
        assert self.bills() == expected
        assert self.invoices() == expected
        if self.copies:
            copied = {
                customer: [each for each in bills for _ in range(self.copies)]
                for customer, bills in expected.items()
            }
            assert self.invoices("copies") == copied


class NoDatabase:
    """The log has the consumer's state."""

    url = "log"

    def connect(self):
        return sqlite3.connect(":memory:")


class LogWorld(World):
    """Bills are in the consumer's state: of each customer a list, and how many there are."""

    def __init__(self, place=None, **settings):
        super().__init__(place or NoDatabase(), **settings)

    def bill(self, order, effects):
        customer, state = order["customer"], effects.state
        number = state.get(f"count {customer}", 0) + 1
        state[f"count {customer}"] = number
        state[f"{customer} {number}"] = [customer, number, order["what"]]
        self.publish({"customer": customer, "number": number, "what": order["what"]}, effects)

    def changelog(self, substream):
        """The state of a substream as it is in the log, read anew."""
        place = self.log._place
        found = Changelog("billing", f"orders/{substream}", place.incarnation, place.seals)
        while place.run(found.read()):
            pass
        return found

    def state(self, substream):
        """The state of a substream as handlers have it."""
        return dict(ShardState(Changes(self.changelog(substream).table)))

    def bills(self):
        found = [
            bill
            for substream in range(self.substreams)
            for key, bill in self.state(substream).items()
            if not key.startswith("count ")
        ]
        return by_customer(sorted(found))


def by_customer(rows):
    found = {}
    for customer, number, what in rows:
        found.setdefault(customer, []).append((number, what))
    return found
