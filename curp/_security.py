"""Certificates and the group's token, as the commands are given them: in files."""

from __future__ import annotations

import argparse
from pathlib import Path

import grpc

from _rifl_ground.options import AllowPlaintext, add_message_limit
from _rifl_ground.plaintext import is_loopback
from _rifl_ground.tls import add_tls_options, wrong_options
from rifl._grpc.entrance import MESSAGE_S


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a process that listens: its certificate, whose it asks for, patience."""
    add_tls_options(parser)
    add_message_limit(parser, MESSAGE_S)
    parser.add_argument(
        "--peer-property",
        metavar="NAME",
        help="what of its certificate a caller's token is bound to; everywhere in a group the same",
    )


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that calls replicas."""
    parser.add_argument(
        "--tls-authorities",
        type=Path,
        metavar="PEM",
        help="speak TLS to servers whose certificates one of these signed; with a certificate "
        "alone: one of the system's authorities",
    )
    _add_certificate(parser)
    add_token_option(parser)
    add_plaintext_option(parser)


def add_token_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the file with the group's token."""
    parser.add_argument(
        "--group-token-file",
        type=Path,
        metavar="FILE",
        help="the secret of the group's replicas, witnesses and operators; of several lines each "
        "is accepted, and the first is shown",
    )


def add_open_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of a process that is reached from elsewhere although it has no token."""
    parser.add_argument(
        "--no-group-token",
        action="store_true",
        help="be reached from other machines without a token: each of their clients can stop the "
        "group, and read what witnesses hold",
    )


def check_group_token(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, *addresses: str
) -> None:
    """End with a usage error if other machines reach one of the addresses, and no token is asked.

    ``arguments.open_group`` is whether that was permitted, and is so.
    """
    if arguments.no_group_token and arguments.group_token_file is not None:
        parser.error("--group-token-file and --no-group-token exclude each other")
    beyond = next((each for each in addresses if not is_loopback(each)), None)
    asked = arguments.group_token_file is not None
    arguments.open_group = beyond is not None and arguments.no_group_token
    if beyond is not None and not (asked or arguments.no_group_token):
        parser.error(
            f"without a token each client that reaches {beyond} can stop the group, and read what "
            "witnesses hold: pass --group-token-file, or permit that by --no-group-token"
        )


def add_plaintext_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of a process that sends secrets."""
    parser.add_argument("--plaintext-secrets", action=AllowPlaintext)


def check_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with a usage error where options are missing that belong together."""
    if wrong := wrong_options(arguments):
        parser.error(wrong)


def channel_credentials(
    authorities: Path | None, key: Path | None, certificate: Path | None
) -> grpc.ChannelCredentials | None:
    """Return what to call with, None for plaintext; raises ``OSError``.

    A key or a certificate alone asks for TLS, by the system's authorities.
    """
    if authorities is key is certificate is None:
        return None
    return grpc.ssl_channel_credentials(
        None if authorities is None else authorities.read_bytes(),
        None if key is None else key.read_bytes(),
        None if certificate is None else certificate.read_bytes(),
    )


def read_tokens(file: Path | None) -> list[str] | None:
    """Return the group's tokens, None without a file; raises ``OSError``, ``ValueError``.

    A line has one; the first is shown, and each is accepted.
    """
    if file is None:
        return None
    tokens = [line.strip() for line in file.read_text().splitlines() if line.strip()]
    if not tokens or not all(each.isascii() and each.isprintable() for each in tokens):
        raise ValueError(f"{file} is empty, or holds more than printable ASCII")
    return tokens


def read_token(file: Path | None) -> str | None:
    """Return the one that is shown; see ``read_tokens``."""
    tokens = read_tokens(file)
    return None if tokens is None else tokens[0]


def _add_certificate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tls-certificate", type=Path, metavar="PEM")
    parser.add_argument("--tls-key", type=Path, metavar="PEM")
