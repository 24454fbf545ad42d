"""The protocol of a group as a Promela model, searched whole by spin (DESIGN §7).

``python -m chaos.model`` runs the searches.

``searches`` says how much may go wrong and which rule is broken; ``spin`` runs them.
"""

from __future__ import annotations

from chaos.model.searches import BROKEN, LIVENESS, LONG, SAFETY, Search
from chaos.model.spin import Found, Model, SpinMissing

__all__ = ["BROKEN", "LIVENESS", "LONG", "SAFETY", "Found", "Model", "Search", "SpinMissing"]
