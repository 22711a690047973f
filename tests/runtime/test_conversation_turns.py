"""The answer to one message of a routed conversation, followed through all its turns to its end."""

from __future__ import annotations

import asyncio

import pytest

from antiphon import (
    Agent,
    Channel,
    ConversationRouter,
    Denied,
    Envelope,
    Limits,
    ModelUnavailable,
    UsageError,
    calls,
    get_conversation_state,
    says,
    set_conversation_state,
    tool,
)
from antiphon.hub.feed import Signal, TokenSubscriber
from antiphon.runtime.conversation_turns import ConversationTurns, send_and_follow_message
from antiphon.runtime.routed_channels import (
    OfferedConversation,
    offer_conversation,
    offered_conversation_name,
    routed_channel_of,
)
from antiphon.runtime.turn_events import AgentEvent, AIMessageEvent, FinalStateEvent, TokenEvent, ToolUsageEvent
from antiphon.runtime.turn_stream import follow_turn
from tests.support.conversation_desk import TO_TRIAGE, Desk, Slow, a_desk, all_done, hand_over
from tests.support.waiting import soon, wait_until

WATCHED = ConversationRouter(default_agent_id="triage", supervisor_id="watcher")


class Followed:
    """A message that is said, and its answer as it was followed."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.turns = ConversationTurns(channel._live)
        self.events: list[AgentEvent] = []

    async def say(self, text: str, *, message_id: str | None = None, tokens: bool = False) -> Followed:
        events = send_and_follow_message(self.channel, self.turns, text, message_id=message_id, tokens=tokens)
        self.events = [event async for _, event in events if event is not None]
        return self

    @property
    def final(self) -> FinalStateEvent:
        *before, final = self.events
        assert isinstance(final, FinalStateEvent)
        assert not any(isinstance(event, FinalStateEvent) for event in before)
        return final

    @property
    def handoffs(self) -> list[tuple[str | None, str | None, str]]:
        return [(moved.from_agent, moved.to_agent, moved.person) for moved in self.turns.handoffs]


async def follow(channel: Channel, text: str, **options: object) -> Followed:
    return await soon(Followed(channel).say(text, **options))  # type: ignore[arg-type]


async def opened(desk: Desk, router: ConversationRouter = TO_TRIAGE, *people: str, **options: object) -> Channel:
    return (await desk.open(router, *desk.hub.core.agents, *people, **options)).channel  # type: ignore[arg-type]


async def test_handoffs_are_followed_to_the_agent_that_answers() -> None:
    async with a_desk("ann:human") as desk:
        first = calls("handoff_conversation", {"target": "billing", "reason": "r", "summary": "S"}, text="One moment.")
        await desk.agent("triage", first)
        await desk.agent("billing", hand_over("legal"))
        await desk.agent("legal", "You were right.")
        heard = await follow(await opened(desk), "Was I?", message_id="m", tokens=True)
        assert (heard.final.agent, heard.final.text) == ("legal", "One moment.\n\nYou were right.")
        assert heard.handoffs == [("triage", "billing", ""), ("billing", "legal", "")]
        assert (heard.turns.person, heard.turns.unrouted) == ("", False)
        assert heard.final.usage.output_tokens > 0
        pieces = [(event.agent, event.text) for event in heard.events if isinstance(event, TokenEvent)]
        assert "".join(text for agent, text in pieces if agent == "triage") == "One moment."
        assert "".join(text for agent, text in pieces if agent == "legal") == "You were right."
        assert [event.agent for event in heard.events if isinstance(event, ToolUsageEvent)] == ["triage", "billing"]
        again = await follow(heard.channel, "Was I?", message_id="m")
        assert again.final == heard.final
        assert again.handoffs == heard.handoffs


async def test_the_observer_is_no_part_of_the_answer() -> None:
    async with a_desk("ann:human") as desk:
        watching = Slow("Seen.")
        await desk.agent("triage", "Good day.")
        await desk.agent("watcher", watching)
        heard = await follow(await opened(desk, WATCHED), "Hello")
        assert (heard.final.agent, heard.final.text) == ("triage", "Good day.")
        await watching.begun()
        watching.go_on()


async def test_a_message_in_a_hold_is_over_at_once_and_stays_so() -> None:
    async with a_desk("ann:human") as desk:
        await desk.agent("triage", hand_over("human"), "Back.")
        channel = await opened(desk)
        handed = await follow(channel, "A person, please.", message_id="m1")
        assert (handed.final.agent, handed.final.text, handed.turns.person) == ("triage", "", "human")
        assert handed.handoffs == [("triage", None, "human")]
        heard = await follow(channel, "Hello?", message_id="m2")
        assert (heard.final.text, heard.final.stopped, heard.turns.person) == ("", None, "human")
        await channel.release()
        assert (await follow(channel, "Anyone?")).final.text == "Back."
        late = await follow(channel, "Hello?", message_id="m2")
        assert (late.final, late.turns.person) == (heard.final, "human")
        assert (await follow(channel, "A person, please.", message_id="m1")).turns.person == "human"


@pytest.mark.parametrize("ended_by", ["release", "release to an agent", "state"])
async def test_a_message_of_an_earlier_hold_was_for_the_person_of_that_hold(ended_by: str) -> None:
    """Also if that hold has ended, agents have answered since, and another person has the conversation now."""
    async with a_desk("ann:human", "dana:human", "emil:human") as desk:
        await desk.agent("triage", hand_over("dana"), "Back.", hand_over("emil"))
        channel = await opened(desk, TO_TRIAGE, "dana", "emil")
        await follow(channel, "A person, please.")
        heard = await follow(channel, "Hello?", message_id="m")
        assert heard.turns.person == "dana"
        held = await desk.people["dana"].channel(channel.channel_id)
        if ended_by == "state":
            state = get_conversation_state(held)
            await set_conversation_state(held, state.transition(to_phase="handling", to_agent="triage"))
        else:
            await held.release(to=None if ended_by == "release" else "triage")
        between = await follow(channel, "Hello?", message_id="m")
        assert (between.final, between.turns.person) == (heard.final, "dana")
        assert (await follow(channel, "Anyone?")).final.text == "Back."
        assert (await follow(channel, "Another person, please.")).turns.person == "emil"
        late = await follow(channel, "Hello?", message_id="m")
        assert (late.final, late.turns.person, late.handoffs) == (heard.final, "dana", [])


async def test_a_message_that_was_addressed_in_a_hold_has_its_answer_after_it() -> None:
    async with a_desk("ann:human", "dana:human") as desk:
        slow = Slow("Billing here.")
        await desk.agent("triage", hand_over("dana"))
        await desk.agent("billing", slow, "And again.")
        talk = await desk.open(TO_TRIAGE, "triage", "billing", "dana")
        await talk.ask("A person, please.")
        await talk.say("One?", addressed_to="billing")
        await slow.begun()
        said = await talk.say("Two?", addressed_to="billing")
        await talk.release("dana")
        slow.go_on()
        await talk.settled()
        turns = ConversationTurns(talk.channel._live)
        *_, final = [event async for _, event in follow_turn(talk.channel, turns, said)]
        assert isinstance(final, FinalStateEvent)
        assert (final.agent, final.text, turns.person) == ("billing", "And again.", "")


async def test_a_message_that_waits_is_over_when_a_person_takes_the_conversation() -> None:
    async with a_desk("ann:human") as desk:
        deciding = Slow(hand_over("human"))
        await desk.agent("triage", deciding)
        channel = await opened(desk)
        first = asyncio.create_task(Followed(channel).say("One"))
        await deciding.begun()
        second = asyncio.create_task(Followed(channel).say("Two"))
        await wait_until(lambda: channel.state.turn_count >= 2)
        deciding.go_on()
        assert [each.turns.person for each in await soon(asyncio.gather(first, second))] == ["human", "human"]
        assert first.result().final.agent == "triage"
        assert (second.result().final.agent, second.result().final.text) == ("", "")


async def test_messages_at_once_have_each_their_own_answer() -> None:
    async with a_desk("ann:human") as desk:
        await desk.agent("triage", *[f"Answer {number}." for number in range(8)])
        channel = await opened(desk)
        heard = await soon(asyncio.gather(*(follow(channel, f"Say {n}", tokens=True) for n in range(8))))
        assert sorted(each.final.text for each in heard) == [f"Answer {number}." for number in range(8)]
        for each in heard:
            pieces = [event.text for event in each.events if isinstance(event, TokenEvent)]
            assert "".join(pieces) in (each.final.text, "")


async def test_no_agent_answers() -> None:
    async with a_desk("ann:human") as desk:
        await desk.agent("triage", "Never.")
        heard = await follow(await opened(desk, ConversationRouter()), "Hello?")
        assert (heard.final.text, heard.final.stopped, heard.turns.unrouted) == ("", None, True)


async def test_a_turn_that_fails_ends_the_answer_also_after_a_handoff() -> None:
    async with a_desk("ann:human") as desk:
        await desk.agent("triage", hand_over("billing"), hand_over("billing"))
        await desk.agent("billing", ModelUnavailable("away"), limits=Limits(model_attempts=1))
        heard = await follow(await opened(desk), "Hello")
        assert (heard.final.stopped, heard.final.agent) == ("model_error", "billing")


async def test_a_channel_that_closes_ends_the_answer() -> None:
    async with a_desk("ann:human") as desk:
        slow = Slow("Late.")
        await desk.agent("triage", slow)
        channel = await opened(desk)
        one = asyncio.create_task(follow(channel, "One"))
        await slow.begun()
        two = asyncio.create_task(follow(channel, "Two"))
        await wait_until(lambda: channel.state.turn_count >= 2)
        await channel.close("enough")
        for heard in await soon(asyncio.gather(one, two)):
            assert (heard.final.stopped, heard.final.detail) == ("channel_closed", "enough")
        slow.go_on()


class ByHand:
    """A conversation whose agents are driven by the test, and one message of it that is followed."""

    def __init__(self, desk: Desk, channel: Channel, said: Envelope) -> None:
        self._desk, self._channel, self.said = desk, channel, said
        self.turns = ConversationTurns(channel._live)

    async def packet(self, body: str = "", *, by: str = "triage", handoff: str | None = None) -> None:
        """End the turn of this agent."""
        build = self._desk.hub.adapter_for(self._channel.channel_id).build_packet_envelope
        await self._desk.hub.post(build(sender_id=by, body=body, handoff=handoff, causation_id=self.said.envelope_id))

    async def text(self, text: str) -> None:
        """Say something before the turn ends."""
        build = self._desk.hub.adapter_for(self._channel.channel_id).build_text_envelope
        await self._desk.hub.post(build(sender_id="triage", text=text, causation_id=self.said.envelope_id))

    async def final(self) -> FinalStateEvent:
        """The end of the answer, which must have come."""
        *_, event = [event async for _, event in follow_turn(self._channel, self.turns, self.said)]
        assert isinstance(event, FinalStateEvent)
        return event


async def by_hand(desk: Desk, router: ConversationRouter, **options: object) -> ByHand:
    names = [name for name in desk.people if name != "ann"]
    channel = (await desk.open(router, *names, **options)).channel  # type: ignore[arg-type]
    return ByHand(desk, channel, await channel.send("Hello"))


async def test_a_handoff_that_became_impossible_is_routed_again_and_followed() -> None:
    async with a_desk("ann:human", "triage:agent") as desk:
        one = await by_hand(desk, TO_TRIAGE)
        await one.packet(handoff="sales")
        await one.packet("I do it myself.")
        final = await soon(one.final())
        assert (final.agent, final.text, one.turns.handoffs) == ("triage", "I do it myself.", [])


async def test_a_text_of_an_agent_is_not_the_end_of_its_turn() -> None:
    async with a_desk("ann:human", "triage:agent") as desk:
        one = await by_hand(desk, TO_TRIAGE)
        await one.text("I am looking.")
        await one.packet("Found.")
        assert (await soon(one.final())).text == "Found."


async def test_a_refused_handoff_with_words_is_the_answer() -> None:
    async with a_desk("ann:human", "triage:agent") as desk:
        one = await by_hand(desk, TO_TRIAGE)
        await one.packet("Ask sales.", handoff="sales")
        assert (await soon(one.final())).text == "Ask sales."


async def test_what_is_not_routed_again_is_over_and_the_observer_does_not_answer_in_its_place() -> None:
    async with a_desk("ann:human", "triage:agent", "watcher:agent") as desk:
        one = await by_hand(desk, WATCHED, guards=[{"name": "hop_limit", "most": 1}])
        await one.packet(handoff="sales")
        await one.packet(handoff="sales")
        await one.packet("What was that?", by="watcher")
        final = await soon(one.final())
        assert (final.agent, final.text, final.stopped) == ("triage", "", None)


async def test_tokens_of_a_turn_that_was_not_read_yet_are_kept() -> None:
    async with a_desk("ann:human") as desk:
        slow = Slow("One.")
        await desk.agent("triage", slow, "Two.")
        channel = await opened(desk)
        await channel.send("First")
        await slow.begun()
        second = await channel.send("Second")
        slow.go_on()
        await wait_until(lambda: not channel.state.owed)
        log = await desk.hub.log(channel.channel_id, after=second.sequence)
        place = next(n for n, each in enumerate(log) if each.causation_id == second.envelope_id)
        turn_id = f"{log[place].sequence}/triage"
        subscriber, turns = TokenSubscriber(), ConversationTurns(channel._live)
        turns.message = second
        subscriber.signals.append(Signal(channel.channel_id, "triage", turn_id, 0, "Two"))
        pages = ((), log[:place], log[place:])
        told = [[event for _, event in turns.project_page(page, subscriber)] for page in pages]
        assert told[:2] == [[], []]
        assert told[2][:2] == [TokenEvent("triage", "Two"), AIMessageEvent("triage", "Two.")]


async def test_a_message_behind_a_turn_that_waits_for_a_person_says_so() -> None:
    @tool(idempotency="unsafe", timeout=0.02)
    async def pay() -> str:
        """Pay, without an answer."""
        await asyncio.Event().wait()
        return "paid"

    async with a_desk("ann:human") as desk:
        await desk.agent("triage", calls("pay"), "Done.", "Yes.", tools=[pay])
        channel = await opened(desk)
        asked = asyncio.create_task(follow(channel, "Pay."))
        await wait_until(lambda: bool(channel.state.owed and channel.state.owed[0].epoch))
        behind = asyncio.create_task(follow(channel, "And?"))
        await all_done()
        await desk.clock.advance(1)
        assert (await asked).final.stopped == "in_doubt"
        assert (await behind).final.stopped == "in_doubt"
        later = await follow(channel, "And now?")
        assert later.final.stopped == "in_doubt"
        assert "for an earlier message waits for a person" in later.final.detail


async def test_a_message_to_people_alone_is_over_at_once() -> None:
    async with a_desk("ann:human", "dana:human") as desk:
        await desk.agent("triage", "Never.")
        channel = await opened(desk, TO_TRIAGE, "dana")
        said = await channel.send("Psst.", audience=["dana"])
        turns = ConversationTurns(channel._live)
        events = [event async for _, event in follow_turn(channel, turns, said) if event is not None]
        assert events == [FinalStateEvent("", channel_id=channel.channel_id)]
        assert (turns.person, turns.unrouted) == ("", False)


# The conversation that a hub offers


async def offering(desk: Desk, **options: object) -> None:
    await desk.agent("triage", hand_over("billing"), "Never.")
    await desk.agent("billing", "Charged once.", "Yes.", "And again.")
    offer_conversation(desk.hub, OfferedConversation(TO_TRIAGE.to_dict(), **options))  # type: ignore[arg-type]


async def test_a_thread_is_one_channel_of_its_speaker_with_all_agents_and_people() -> None:
    async with a_desk() as desk:
        assert offered_conversation_name(desk.hub.core) == ""
        with pytest.raises(UsageError, match="this hub has no router"):
            await routed_channel_of(desk.hub, "t", speaker="ann")
        await offering(desk, people=("dana", "ann"))
        assert offered_conversation_name(desk.hub.core) == "conversation"
        one = await routed_channel_of(desk.hub, "t", speaker="ann")
        assert one.state.participants == {"ann": "human", "triage": "agent", "billing": "agent", "dana": "human"}
        ids = {one.channel_id}
        ids.add((await routed_channel_of(desk.hub, "t", speaker="ann")).channel_id)
        assert len(ids) == 1
        ids.add((await routed_channel_of(desk.hub, "t", speaker="ben")).channel_id)
        ids.add((await routed_channel_of(desk.hub, None, speaker="ann")).channel_id)
        assert len(ids) == 3


async def test_a_conversation_goes_on_in_a_new_channel_where_it_was() -> None:
    async with a_desk() as desk:
        await offering(desk, handoff={"phase_map": {"billing": "handling"}})
        before = await routed_channel_of(desk.hub, "t", speaker="ann")
        assert (await follow(before, "Twice?")).final.text == "Charged once."
        after = await routed_channel_of(desk.hub, "u", speaker="ann", continued=before._live)
        state = get_conversation_state(after)
        assert (state.phase, state.active_agent_id) == ("handling", "billing")
        assert (await follow(after, "Sure?")).final.agent == "billing"
        again = await routed_channel_of(desk.hub, "u", speaker="ann", continued=before._live)
        assert (again.channel_id, get_conversation_state(again)) == (after.channel_id, get_conversation_state(after))


async def test_a_hold_goes_on_in_a_new_channel() -> None:
    async with a_desk() as desk:
        await desk.agent("triage", hand_over("dana"))
        offer_conversation(desk.hub, OfferedConversation(TO_TRIAGE.to_dict(), people=("dana",)))
        before = await routed_channel_of(desk.hub, None, speaker="ann")
        await follow(before, "A person.")
        after = await routed_channel_of(desk.hub, None, speaker="ann", continued=before._live)
        assert (await follow(after, "Hello?")).turns.person == "dana"
        with pytest.raises(Denied, match="not_a_person"):
            await after.release()


async def test_the_name_of_an_agent_is_not_offered() -> None:
    async with a_desk() as desk:
        await desk.hire(Agent("conversation", lambda request: says("Me.")))  # type: ignore[arg-type, return-value]
        with pytest.raises(UsageError, match="'conversation' is the name of an agent"):
            offer_conversation(desk.hub, OfferedConversation(TO_TRIAGE.to_dict()))
        offer_conversation(desk.hub, OfferedConversation(TO_TRIAGE.to_dict(), name="help"))
        assert offered_conversation_name(desk.hub.core) == "help"
