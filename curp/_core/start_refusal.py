"""The reason why a witness would not be started, for people (DESIGN §7, invariant 2)."""

from __future__ import annotations

from curp._core.witness_table import WitnessVerdict


def start_refusal(verdict: WitnessVerdict, found: tuple[str, int] | None = None) -> str:
    """Say what a witness's verdict about a start means.

    ``found``: the group (see ``group_of_log``) and the configuration number that the witness
    says it serves; None if it was not asked, or said nothing.
    """
    if verdict is WitnessVerdict.OTHER_GROUP:
        if found is None:
            return "refused: it serves another group"
        return f"refused: it serves another group, {found[0]}"
    number = "" if found is None else f" {found[1]}"
    if verdict is WitnessVerdict.FROZEN:
        return f"refused: another replica took over from configuration{number}"
    if verdict is WitnessVerdict.OTHER_CONFIGURATION:
        return f"refused: it serves configuration{number} already, which is not behind ours"
    return f"refused: {verdict.name}"
