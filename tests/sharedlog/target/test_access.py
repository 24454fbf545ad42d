"""Tokens of a target: a new one comes into use while the old one is accepted (DESIGN-LOG §15)."""

import pytest

from sharedlog import InvalidRequest
from sharedlog._core.errors import NotAllowed
from sharedlog._target.access import PlayerAccess

OLD, NEW = "the old token", "the new token"


class _Player:
    def __init__(self, token):
        self._token = token

    def auth_context(self):
        return {}

    def invocation_metadata(self):
        return (("authorization", f"Bearer {self._token}"),)


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
