"""The reason why a witness would not be started, for people (DESIGN §7, invariant 2)."""

from __future__ import annotations

from curp._core.witness_table import WitnessVerdict


def start_refusal(verdict: WitnessVerdict, name: str, found: tuple[str, int] | None = None) -> str:
    """Say what a witness's verdict about a start by the group of that name means.

    ``found``: the group (see ``group_of_log``) and the configuration number that the witness
    says it serves; None where it was not asked, or said nothing.
    """
    if verdict is WitnessVerdict.OTHER_GROUP:
        if found is None or not found[0]:
            return "refused: it serves another group"
        if found[0] == name:
            # One of this release would go on with a log that has an id now.
            return (
                f"refused: it serves {found[0]} without a log id, as an older release does; "
                "start it anew with this one"
            )
        return f"refused: it serves another group, {found[0]}"
    number = "" if found is None else f" {found[1]}"
    if verdict is WitnessVerdict.FROZEN:
        return f"refused: another replica took over from configuration{number}"
    if verdict is WitnessVerdict.OTHER_CONFIGURATION:
        return f"refused: it serves configuration{number} already, which is not behind ours"
    return f"refused: {verdict.name}"
