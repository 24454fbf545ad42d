"""Orders are confirmed by e-mail, through a server that speaks SMTP, with dead letters.

An order and its e-mail are in the log by one append; a consumer hands the e-mails to an SMTP
server, and notes them in its database. What the server refuses for good (no such mailbox) becomes
a dead letter after so many attempts; what it refuses for now is tried again; the other mailboxes go
on. A consumer that dies between the server's answer and its own commit hands an e-mail over
again: SMTP has no identities for calls. So each has a ``Message-ID`` that is the message's
position, by which servers and readers know it. For exactly once put a service that rifl
deduplicates before the server, and call it by ``effects.channel``.
Run it: ``python -m examples.mailed_orders``.
"""

from __future__ import annotations

import contextlib
import json
import smtplib
import socketserver
import sqlite3
import tempfile
import threading
from email import message_from_bytes
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import sharedlog
import sharedlog.testing
from examples.checking import expect

PEOPLE = ("ann", "bob", "cem", "nobody")
ORDERS = 24


class Mailboxes(socketserver.ThreadingTCPServer):
    """A server that speaks SMTP (RFC 5321), as far as a client of it needs.

    It has no mailbox ``nobody`` (550), and is too busy for each third delivery (451).
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        """It listens at a free port."""
        super().__init__(("127.0.0.1", 0), _Session)
        self.lock = threading.Lock()
        self.asked = 0
        self.arrived: list[tuple[str, str]] = []

    def deliver(self, mailbox: str, data: bytes) -> bool:
        """Put an e-mail into a mailbox; False: not now."""
        with self.lock:
            self.asked += 1
            if self.asked % 3 == 0:
                return False
            self.arrived.append((mailbox, str(message_from_bytes(data)["Message-ID"])))
            return True


class _Session(socketserver.StreamRequestHandler):
    server: Mailboxes

    def handle(self) -> None:
        """Answer one client's commands until it leaves."""
        mailbox = ""
        self._say("220 mail.example ready")
        for line in self.rfile:
            command = line.decode().strip()
            word = command.upper().partition(":")[0].partition(" ")[0]
            if word in ("EHLO", "HELO"):
                self._say("250 mail.example")
            elif word == "RCPT":
                mailbox = command.partition("<")[2].partition("@")[0]
                known = mailbox != "nobody"
                self._say("250 OK" if known else "550 5.1.1 no such mailbox")
            elif word == "DATA":
                self._say("354 go on")
                taken = self.server.deliver(mailbox, self._data())
                self._say("250 OK" if taken else "451 4.3.2 too busy, try again")
            elif word == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 OK")

    def _data(self) -> bytes:
        lines = []
        for line in self.rfile:
            if line == b".\r\n":
                break
            lines.append(line.removeprefix(b"."))
        return b"".join(lines)

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


def mailing(log: sharedlog.Log, store: str, port: int) -> sharedlog.Consumer:
    """Return the consumer that hands e-mails over."""
    consumer = sharedlog.Consumer(
        log, "mailing", ["mails"], store, attempts=4, dead_letters="mails.dead", batch=1
    )

    @consumer.on("mails", json.loads)
    def send(mail: dict[str, Any], effects: sharedlog.Effects) -> None:
        position = effects.message.position
        letter = EmailMessage()
        letter["From"], letter["To"] = "shop@shop.example", f"{mail['to']}@mail.example"
        letter["Subject"] = mail["subject"]
        letter["Message-ID"] = f"<{position.lsn}.{position.ordinal}@shop.example>"
        letter.set_content("Thank you.")
        with smtplib.SMTP("127.0.0.1", port, timeout=10) as server:
            server.send_message(letter)
        effects.connection.execute(
            "INSERT INTO mailed VALUES (?, ?)", (mail["to"], letter["Message-ID"])
        )

    return consumer


def main(directory: Path) -> None:
    """Order, with the consumer killed once between the server's answer and its own commit."""
    file = directory / "mailed.db"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE mailed (name TEXT, message_id TEXT PRIMARY KEY)")
    with (
        Mailboxes() as mailboxes,
        sharedlog.create(f"sqlite:///{directory / 'events.log'}") as log,
    ):
        threading.Thread(target=mailboxes.serve_forever, daemon=True).start()
        port = mailboxes.server_address[1]
        for stream in ("orders", "mails", "mails.dead"):
            log.stream(stream, substreams=2)
        for number in range(ORDERS):
            name = PEOPLE[number % len(PEOPLE)]
            mail = {"to": name, "subject": f"Your order {number}"}
            with log.producer().transaction() as order:
                order.publish("orders", json.dumps({"number": number, "name": name}), key=name)
                order.publish("mails", json.dumps(mail), key=name)

        def consumer() -> sharedlog.Consumer:
            return mailing(log, f"sqlite:///{file}", port)

        with sharedlog.testing.driven(consumer()) as process:

            def die(_: int, step: str) -> None:
                if step == "store: commit" and mailboxes.arrived:
                    process.die()

            process.before = die
            process.drain()
        expect("the process died before its commit", process.dead, True)
        sharedlog.testing.drain(consumer())

        with contextlib.closing(sqlite3.connect(file)) as database:
            noted = sorted(row[0] for row in database.execute("SELECT message_id FROM mailed"))
        arrived = [message_id for _, message_id in mailboxes.arrived]
        wanted = ORDERS - ORDERS // len(PEOPLE)
        expect("e-mails that are noted", len(noted), wanted)
        expect("e-mails that arrived, by their identity", sorted(set(arrived)) == noted, True)
        expect("that arrived twice", len(arrived) - wanted, 1)
        dead = [each for at in range(2) for each in log.read("mails.dead", at, limit=1000)]
        expect("dead letters", len(dead), ORDERS // len(PEOPLE))
        why = {each.headers["dead-letter-error"].decode().partition(":")[0] for each in dead}
        expect("why", sorted(why), ["SMTPRecipientsRefused"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as found:
        main(Path(found))
