"""Ports for servers of the tests."""

from chaos.ports import free_port

__all__ = ["free_port"]
