"""Checks recorded histories, of the simulator and of real runs, for exactly-once.

``python -m chaos.check FILE...`` reads JSON lines (``chaos.check.history``) and exits
non-zero if a history breaks a promise.

``history`` has the events, ``checks`` the rules, of which ``linearizable`` is the longest.
"""

from chaos.check.checks import RULES, Violation, check
from chaos.check.history import History
from chaos.check.linearizable import Undecided, linearizable

__all__ = ["RULES", "History", "Undecided", "Violation", "check", "linearizable"]
