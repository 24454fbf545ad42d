"""Checks recorded histories, of the simulator and of real runs, for exactly-once.

``python -m chaos.check FILE...`` reads JSON lines (``chaos.check.history``) and exits
non-zero if a history breaks a promise.

``history`` has the events, ``checks`` the rules, of which ``linearizable`` is the longest.
Of histories of a log ``log_history`` has the events, ``log_checks`` the rules. A ``violation`` is
what either finds.
"""

from chaos.check.checks import RULES, check_calls
from chaos.check.history import History
from chaos.check.linearizable import Undecided, linearizable
from chaos.check.log_checks import LOG_RULES, check_log
from chaos.check.log_history import of_a_log
from chaos.check.violation import Violation

__all__ = ["LOG_RULES", "RULES", "History", "Undecided", "Violation", "check", "linearizable"]


def check(history: History) -> list[Violation]:
    """Return everything that breaks a rule; empty for a history that keeps them."""
    return check_log(history) if of_a_log(history) else check_calls(history)
