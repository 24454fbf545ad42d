"""The release that is installed, as the commands tell it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the release's number; where nothing is installed (a bare tree), that."""
    try:
        return version("rifl-grpc")
    except PackageNotFoundError:
        return "not installed"
