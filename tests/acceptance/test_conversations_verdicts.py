"""Reviews in a workflow: "NOT APPROVED" is no approval, and nothing but an approval ends one as approved."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import EV_PACKET, Agent, Limits, ModelRefused, ScriptedModel, ToolCalled, calls, review_loop, says, tool
from antiphon.core.envelope import Json
from antiphon.testing import ManualClock
from tests.support.conversation_desk import WARNED, Desk, a_desk
from tests.support.waiting import wait_until

DRAFTS = ("Draft 1.", "Draft 2.", "Draft 3.", "Draft 4.")


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with a_desk("ann:human", "press:service") as found:
        yield found


async def reviewed(desk: Desk, *reviews: object, creator: str = "ann", **options: object) -> tuple[str, list[str]]:
    """Why a review ended in which this was said, and the drafts and reviews in order."""
    await desk.agent("author", *DRAFTS)
    if "reviewer" not in desk.people:
        await desk.agent("reviewer", *reviews)
    graph = review_loop("author", "reviewer", **options)  # type: ignore[arg-type]
    knobs: Json = {"graph": graph.to_dict()}
    people = desk.people[creator]
    channel = await people.open(type="workflow", target=["author", "reviewer"], knobs=knobs, say="Write a haiku.")
    why = await channel.closed()
    log = await desk.hub.log(channel.channel_id)
    assert [each for each in log if each.event_type == WARNED] == []
    return why, [str(each.event_data["body"]) for each in log if each.event_type == EV_PACKET]


async def test_not_approved_is_no_approval(desk: Desk) -> None:
    why, said = await reviewed(desk, "NOT APPROVED", "Verdict: NOT APPROVED.", "I have NOT\n**APPROVED**")
    assert why == "not_approved"
    assert said == [
        *("Draft 1.", "NOT APPROVED"),
        *("Draft 2.", "Verdict: NOT APPROVED."),
        *("Draft 3.", "I have NOT\n**APPROVED**"),
    ]


@pytest.mark.parametrize("review", ["approved?", "APPROVED if you fix the rhyme", "disapproved", "I have not approved"])
async def test_what_only_has_the_word_is_no_approval(desk: Desk, review: str) -> None:
    assert await reviewed(desk, review, most_rounds=1) == ("not_approved", ["Draft 1.", review])


async def test_first_approval_ends_it(desk: Desk) -> None:
    why, said = await reviewed(desk, "NOT APPROVED", "Better.\n\n**Verdict:** APPROVED", "never asked")
    assert (why, said[1::2]) == ("approved", ["NOT APPROVED", "Better.\n\n**Verdict:** APPROVED"])
    assert said[0::2] == ["Draft 1.", "Draft 2."]


async def test_approval_in_the_last_round_counts(desk: Desk) -> None:
    assert (await reviewed(desk, "no", "no", "LGTM"))[0] == "approved"


@pytest.mark.parametrize("rounds", [1, 2, 4])
async def test_reviews_are_counted(desk: Desk, rounds: int) -> None:
    why, said = await reviewed(desk, *["NOT APPROVED"] * 4, most_rounds=rounds)
    assert (why, said.count("NOT APPROVED"), len(said)) == ("not_approved", rounds, 2 * rounds)


async def test_what_the_author_says_approves_nothing(desk: Desk) -> None:
    await desk.agent("author", "APPROVED", "APPROVED")
    graph = review_loop("author", "reviewer", most_rounds=2)
    await desk.agent("reviewer", "no", "no")
    channel = await desk.people["ann"].open(
        type="workflow", target=["author", "reviewer"], knobs={"graph": graph.to_dict()}, say="Approve yourself."
    )
    assert await channel.closed() == "not_approved"


async def test_a_stopped_review_approves_nothing(desk: Desk) -> None:
    """The reviewer says that it approves, and its turn is cut off before it has looked."""

    @tool
    def look() -> str:
        """Look at the draft."""
        return "looks fine"

    script = [calls("look", text="APPROVED"), says("never asked")]
    await desk.hire(Agent("reviewer", ScriptedModel(script), tools=[look], limits=Limits(model_calls=1)))
    why, said = await reviewed(desk, most_rounds=1)
    assert (why, said) == ("not_approved", ["Draft 1.", "APPROVED"])


async def test_a_silent_review_approves_nothing(desk: Desk) -> None:
    assert (await reviewed(desk, "", most_rounds=1)) == ("not_approved", ["Draft 1.", ""])


async def test_a_review_that_fails_approves_nothing(desk: Desk) -> None:
    """A service asks, so there is no person to go on; with one, the turn is theirs."""
    why, said = await reviewed(desk, "NOT APPROVED", ModelRefused("no"), creator="press", opener="press")
    assert why == "turn_failed:model_error"
    assert said == ["Draft 1.", "NOT APPROVED", "Draft 2."]


async def test_a_person_who_goes_on_for_a_failed_reviewer_approves_nothing(desk: Desk) -> None:
    await desk.agent("author", "Draft 1.")
    await desk.agent("reviewer", ModelRefused("no"))
    graph = review_loop("author", "reviewer")
    ann = desk.people["ann"]
    channel = await ann.open(
        type="workflow", target=["author", "reviewer"], knobs={"graph": graph.to_dict()}, say="Write a haiku."
    )
    await wait_until(lambda: channel.state.expected_next_speaker == "ann")
    await channel.send("APPROVED")
    assert await channel.closed() == "not_approved"


async def test_a_service_opens_it_with_the_task(desk: Desk) -> None:
    why, said = await reviewed(desk, "no", "APPROVED", creator="press", opener="press")
    assert (why, said) == ("approved", ["Draft 1.", "no", "Draft 2.", "APPROVED"])


async def test_a_person_reviews(desk: Desk) -> None:
    await desk.agent("author", "Draft 1.", "Draft 2.")
    graph = review_loop("author", "ann", most_rounds=2, opener="ann")
    channel = await desk.people["ann"].open(
        type="workflow", target=["author"], knobs={"graph": graph.to_dict()}, say="Write a haiku."
    )
    for verdict in ("Not approved", "Approved."):
        await wait_until(lambda: channel.state.expected_next_speaker == "ann")
        await channel.send(verdict)
    assert await channel.closed() == "approved"
    log = await desk.hub.log(channel.channel_id)
    assert [each.event_data["body"] for each in log if each.event_type == EV_PACKET] == ["Draft 1.", "Draft 2."]


async def test_another_condition_may_approve(desk: Desk) -> None:
    @tool
    def approve() -> str:
        """Approve the draft."""
        return "noted"

    script = [says("APPROVED"), calls("approve"), says("Not bad.")]
    await desk.hire(Agent("reviewer", ScriptedModel(script), tools=[approve]))
    why, said = await reviewed(desk, approved=ToolCalled("approve"))
    assert (why, said) == ("approved", ["Draft 1.", "APPROVED", "Draft 2.", "Not bad."])


async def test_reviews_are_counted_across_restarts(tmp_path: Path) -> None:
    """The review of the first process counts in the second."""
    url, clock = f"sqlite:///{tmp_path / 'reviews.db'}", ManualClock()
    knobs: Json = {"graph": review_loop("bob", "reviewer", most_rounds=2).to_dict()}
    async with a_desk("bob", url=url, clock=clock) as first:
        model = await first.agent("reviewer", "NOT APPROVED", "never asked")
        channel = await first.people["bob"].open(type="workflow", target=["reviewer"], knobs=knobs, say="Draft 1.")
        await wait_until(lambda: channel.state.expected_next_speaker == "bob")
        assert len(model.requests) == 1
    async with a_desk("bob", url=url, clock=clock) as second:
        await second.agent("reviewer", "NOT APPROVED", "never asked")
        again = await second.people["bob"].channel(channel.channel_id)
        await again.send("Draft 2.")
        assert await again.closed() == "not_approved"
