"""Tokens of a target: a new one comes into use while the old one is accepted (DESIGN-LOG §15)."""

import pytest

from sharedlog import InvalidRequest
from sharedlog._core.errors import NotAllowed
from sharedlog._target.access import PlayerAccess

OLD, NEW = "the old token", "the new token"


class _Player:
    def __init__(self, token, names=None):
        self._token, self._names = token, names

    def auth_context(self):
        if self._names is None:
            return {}
        return {"x509_common_name": [b""], "x509_subject_alternative_name": self._names} | {
            "peer_dns": self._names
        }

    def invocation_metadata(self):
        return () if self._token is None else (("authorization", f"Bearer {self._token}"),)


@pytest.mark.parametrize(
    ("tokens", "admitted"),
    [(OLD, {OLD}), (OLD.encode(), {OLD}), ([NEW, OLD], {NEW, OLD}), ([NEW.encode()], {NEW})],
)
def test_each_token_of_a_target_admits_a_player(tokens, admitted):
    """And no other one."""
    access = PlayerAccess(tokens, None)
    assert not access.is_open
    for shown in (OLD, NEW, "", "another"):
        if shown in admitted:
            access.check(_Player(shown))
        else:
            with pytest.raises(NotAllowed):
                access.check(_Player(shown))


@pytest.mark.parametrize("tokens", ["", b"", [], [OLD, ""]])
def test_an_empty_token_is_refused(tokens):
    """It would admit every player, or none."""
    with pytest.raises(InvalidRequest):
        PlayerAccess(tokens, None)


@pytest.mark.parametrize(
    ("names", "shown", "denied"),
    [
        (None, None, ("target_token", "missing")),
        (None, OLD, ("target_token", "wrong")),
        ([b"mail"], OLD, ("target_token", "wrong")),
        ([b"mail"], None, ("certificate", "unlisted")),
        ([], None, ("certificate", "unlisted")),
    ],
)
def test_why_a_player_is_refused_is_told(names, shown, denied):
    """By the token if it shows one, else by its certificate (DESIGN §9)."""
    player = _Player(shown, names)
    with pytest.raises(NotAllowed) as error:
        PlayerAccess(NEW, ["dns:shop"]).check(player)
    assert error.value.denied == denied


def test_a_player_without_a_certificate_is_told_that_it_needs_one():
    """Where no token would do (DESIGN §9)."""
    with pytest.raises(NotAllowed) as error:
        PlayerAccess(None, ["dns:shop"]).check(_Player(None))
    assert error.value.denied == ("certificate", "missing")
