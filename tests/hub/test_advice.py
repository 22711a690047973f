"""What a wrong call is told: the value, and what would work instead."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon import EV_CONTEXT_SET, EV_TEXT, Channel, Denied, RulesInvalid, UnknownParticipant
from tests.hub.test_bad_input import Call, posted, sent
from tests.support.hub_team import Team, team


@pytest.fixture
async def here() -> AsyncIterator[Team]:
    async with team("alice", "bob") as found:
        yield found


@pytest.fixture
async def channel(here: Team) -> Channel:
    return await here["alice"].open(target="bob")


@pytest.mark.parametrize(
    ("call", "detail"),
    [
        (sent(5), "event_data of 'ag2.msg.text': text is int, not str"),
        (posted(EV_TEXT, {}), "event_data of 'ag2.msg.text': text is missing"),
        (posted(EV_CONTEXT_SET, {"unset": []}), "event_data of 'ag2.context.set': it has no field 'unset'"),
    ],
)
async def test_a_wrong_shape_is_told_in_plain_words(here: Team, channel: Channel, call: Call, detail: str) -> None:
    with pytest.raises(Denied) as caught:
        await call(here, channel)
    assert (caught.value.reason, caught.value.detail) == ("malformed", detail)


@pytest.mark.parametrize("channel_type", ["conversation", "consulting", "discussion"])
@pytest.mark.parametrize(
    "given", [5, "zed", "bob", "", False, {}, {"bob": True}, [7], [["bob"]], ["bob", None]], ids=repr
)
async def test_interjectors_are_a_list_of_names_everywhere(here: Team, channel_type: str, given: object) -> None:
    with pytest.raises(RulesInvalid) as caught:
        await here["alice"].open(type=channel_type, target="bob", knobs={"interjectors": given})
    assert str(caught.value) == f"interjectors is {given!r}; give a list of names"


@pytest.mark.parametrize("interjectors", [None, [], ["bob"]])
async def test_interjectors_are_no_mistake_where_nobody_waits(here: Team, interjectors: object) -> None:
    channel = await here["alice"].open(target="bob", knobs={"interjectors": interjectors})
    assert channel.state.knobs == {"interjectors": interjectors}


@pytest.mark.parametrize("name", ["hub", "System", "../bob", 7, "", "Bob"])
async def test_nobody_is_told_to_register_what_cannot_be(here: Team, name: object) -> None:
    with pytest.raises(UnknownParticipant) as caught:
        await here["alice"].open(target=[name])  # type: ignore[list-item]
    assert "hub.register(" not in str(caught.value)
