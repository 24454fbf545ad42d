"""The TLS of a command that listens: its options, its certificate, and how that is renewed."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

import grpc

from _rifl_ground.log import get_logger

_log = get_logger("rifl.tls")


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the server's certificate, and whose it asks for."""
    parser.add_argument(
        "--tls-certificate", type=Path, metavar="PEM", help="read again at SIGHUP, as the next two"
    )
    parser.add_argument("--tls-key", type=Path, metavar="PEM")
    parser.add_argument(
        "--tls-client-authorities",
        type=Path,
        metavar="PEM",
        help="require callers' certificates, signed by one of these",
    )


def wrong_options(arguments: argparse.Namespace) -> str:
    """Say which options are missing that belong together; empty: none."""
    if (arguments.tls_certificate is None) is not (arguments.tls_key is None):
        return "--tls-certificate and --tls-key come together"
    if getattr(arguments, "tls_client_authorities", None) and arguments.tls_key is None:
        return "--tls-client-authorities needs --tls-certificate and --tls-key"
    return ""


class ServedCertificate:
    """A server's certificate and key, and whose certificates it asks for. Any thread.

    ``credentials``: to listen with, None for plaintext. Connections that are open when the files
    are read again stay.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Read the files that the options name; raises ``OSError``."""
        self._key: Path | None = arguments.tls_key
        self._certificate: Path = arguments.tls_certificate
        self._authorities: Path | None = arguments.tls_client_authorities
        # What was read, and no handshake has used yet.
        self._new: grpc.ServerCertificateConfiguration | None = None
        self.credentials: grpc.ServerCredentials | None = None
        if self._key is not None:
            self.credentials = grpc.dynamic_ssl_server_credentials(
                self._read(),
                self._take,  # type: ignore[arg-type]  # None: as before
                self._authorities is not None,
            )

    def read_again(self) -> None:
        """Use what the files hold now for new connections; if they cannot be read, go on."""
        if self._key is None:
            return
        try:
            # gRPC would not say that they do not belong together. A key with a password is refused.
            checked = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            checked.load_cert_chain(self._certificate, self._key, password="")
            self._new = self._read()
        except OSError as error:
            _log.error("certificate_not_read", error=str(error))
        else:
            _log.info("certificate_read", file=str(self._certificate))

    def _take(self) -> grpc.ServerCertificateConfiguration | None:
        new, self._new = self._new, None
        return new

    def _read(self) -> grpc.ServerCertificateConfiguration:
        pair = (Path(self._key or "").read_bytes(), self._certificate.read_bytes())
        authorities = None if self._authorities is None else self._authorities.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], authorities)
