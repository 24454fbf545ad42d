"""The address of a served log: ``grpc://HOST:PORT``, or ``grpcs://`` over TLS, and its options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

import grpc

from _rifl_ground.plaintext import why_not_sent
from _rifl_ground.texts import hides
from _rifl_ground.urls import split_url
from sharedlog._core.errors import InvalidRequest

VARIABLE, FILE_VARIABLE = "SHAREDLOG_TOKEN", "SHAREDLOG_TOKEN_FILE"
_OPTIONS = {"token_file", "plaintext_secrets", "ca", "certificate", "key", "timeout_s"}
_TLS = {"ca", "certificate", "key"}
_TIMEOUT_S = 10.0


@hides("token")
class Address(NamedTuple):
    """Where the log is served. ``credentials``: None for plaintext; ``timeout_s``: of each try."""

    target: str
    credentials: grpc.ChannelCredentials | None
    token: str
    timeout_s: float


def parse(url: str) -> Address:
    """Read a URL; raises ``InvalidRequest``, without a token in its text.

    Options: ``token_file`` (else SHAREDLOG_TOKEN, or the file that SHAREDLOG_TOKEN_FILE names),
    ``plaintext_secrets=1`` (the token may leave this machine over ``grpc://``), ``timeout_s``; of
    ``grpcs`` ``ca`` (else the system's), ``certificate`` and ``key``.
    """
    try:
        split = split_url(url)
        given = parse_qs(split.query, keep_blank_values=True, strict_parsing=bool(split.query))
        port = split.port
    except ValueError as error:
        raise InvalidRequest(f"no URL of a served log: {error}") from None
    if not split.hostname or port is None or split.path not in ("", "/") or split.username:
        raise InvalidRequest("a served log is at grpc://HOST:PORT, or grpcs:// over TLS")
    options = {name: values[-1] for name, values in given.items()}
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise InvalidRequest(f"{unknown[0]!r} is none of the options {', '.join(sorted(_OPTIONS))}")
    secure = split.scheme == "grpcs"
    if not secure and _TLS & set(options):
        raise InvalidRequest("ca, certificate and key are of grpcs://")
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    target, token = f"{host}:{port}", _token(options.get("token_file"))
    allowed = options.get("plaintext_secrets", "0")
    if allowed not in ("0", "1"):
        raise InvalidRequest(f"plaintext_secrets={allowed!r:.100} is 0 or 1")
    why = why_not_sent("the log's token", target, secure=secure, allowed=allowed == "1")
    if token and why:
        raise InvalidRequest(why)
    return Address(
        target,
        _credentials(options) if secure else None,
        token,
        _seconds(options.get("timeout_s")),
    )


def _credentials(options: dict[str, str]) -> grpc.ChannelCredentials:
    if ("certificate" in options) is not ("key" in options):
        raise InvalidRequest("certificate and key come together")
    read = {name: _read(name, options[name]) for name in _TLS & set(options)}
    return grpc.ssl_channel_credentials(read.get("ca"), read.get("key"), read.get("certificate"))


def _token(file: str | None) -> str:
    if file is None:
        token, file = os.environ.get(VARIABLE, ""), os.environ.get(FILE_VARIABLE)
        if token and file:
            raise InvalidRequest(f"of {VARIABLE} and {FILE_VARIABLE} set only one")
        if not file:
            return _checked(token.strip())
    found = _checked(_read("token_file", file).decode("ascii", "replace").strip())
    if not found:
        raise InvalidRequest(f"{file} is empty: a token is expected there")
    return found


def _checked(token: str) -> str:
    if not token.isascii() or not token.isprintable():
        raise InvalidRequest("a token is of printable ASCII")
    return token


def _read(name: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{name}: {error}") from error


def _seconds(text: str | None) -> float:
    try:
        found = _TIMEOUT_S if text is None else float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise InvalidRequest(f"timeout_s={text!r} is no time")
    return found
