"""Hooks: what they are shown, what they may change, and what happens when they fail, are slow, or the hub closes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    Agent,
    Denied,
    Envelope,
    HookEvent,
    HookResult,
    HookTrigger,
    Hub,
    ScriptedModel,
    TerminateTarget,
    TransitionGraph,
    TurnFailed,
    UsageError,
    says,
)
from antiphon.core.envelope import OPERATORS
from antiphon.core.events import EV_HOOK_FAILED, EV_TURN_FAILED
from antiphon.core.execution_events import EV_TURN_RELEASED
from antiphon.testing import ManualClock
from tests.runtime.test_approvals import suspended
from tests.support.given_tasks import echo, ends, giver
from tests.support.hooked import facts, hide_pin, hook_before, hub_over, leaves, never, raises, texts
from tests.support.hub_team import Team, team
from tests.support.kept_store import KeptStore
from tests.support.waiting import let_others_run, soon, wait_until

BEFORE, AFTER = HookTrigger.BEFORE_BROADCAST, HookTrigger.AFTER_BROADCAST


@pytest.fixture
async def place() -> AsyncIterator[Team]:
    async with team("ann", "ben") as here:
        yield here


# Before something is said


async def test_a_hook_blocks_before_anything_is_recorded(place: Team) -> None:
    hook_before(place.hub, hide_pin)
    channel = await place["ann"].open(target="ben")
    await channel.send("hello")
    records = await place.records(channel)
    with pytest.raises(Denied, match="be polite") as denied:
        await channel.send("how rude")
    assert (denied.value.reason, denied.value.channel_id) == ("blocked", channel.channel_id)
    assert await place.records(channel) == records
    assert [each["reason"] for each in await place.audited()] == ["blocked"]


async def test_a_hook_rewrites_a_text_and_the_body_of_a_packet(place: Team) -> None:
    hook_before(place.hub, hide_pin)
    channel = await place["ann"].open(target="ben")
    said = await channel.send("my PIN is 1234")
    assert said.event_data == {"text": "my PIN is ****"}
    packet = await channel.post(EV_PACKET, {"body": "1234", "context_updates": {"set": {"a": 1}}})
    assert packet.event_data == {"body": "****", "context_updates": {"set": {"a": 1}}}
    built = place.hub.adapter_for(channel.channel_id).build_text_envelope(sender_id="ben", text="1234!")
    assert (await place.hub.post(built)).event_data == {"text": "****!"}


async def test_hooks_run_by_priority_each_on_what_the_one_before_left(place: Team) -> None:
    def adding(word: str) -> Callable[[HookEvent], HookResult]:
        return lambda event: HookResult.modify(f"{event.data['text']} {word}")

    for word, priority in (("late", 5), ("first", -1), ("second", 0), ("third", 0)):
        hook_before(place.hub, adding(word), priority=priority)
    channel = await place["ann"].open(target="ben")
    assert (await channel.send("said")).event_data == {"text": "said first second third late"}


async def test_a_block_stops_the_hooks_behind_it(place: Team) -> None:
    asked: list[str] = []
    hook_before(place.hub, lambda event: HookResult.block())
    hook_before(place.hub, lambda event: asked.append(event.channel_id))
    channel = await place["ann"].open(target="ben")
    with pytest.raises(Denied):
        await channel.send("hello")
    assert asked == []


async def test_a_hook_is_shown_the_draft_as_a_copy(place: Team) -> None:
    shown: list[HookEvent] = []

    async def spoil(event: HookEvent) -> None:
        shown.append(event)
        event.data["text"] = "spoilt"
        event.envelope.event_data["more"] = True
        assert event.envelope.audience is not None
        event.envelope.audience.clear()

    hook_before(place.hub, spoil)
    hook_before(place.hub, lambda event: shown.append(event))
    channel = await place["ann"].open(target="ben")
    said = await channel.send("hello", audience=["ben"])
    assert (said.event_data, said.audience) == ({"text": "hello"}, ["ben"])
    assert shown[1].data == shown[1].envelope.event_data == {"text": "hello"}
    event = shown[0]
    assert (event.trigger, event.channel_id) == (BEFORE, channel.channel_id)
    assert (event.envelope.sender_id, event.envelope.event_type, event.envelope.sequence) == ("ann", EV_TEXT, 0)


async def test_what_a_hook_makes_of_a_text_is_checked(place: Team) -> None:
    hook_before(place.hub, lambda event: HookResult.modify("half a \ud800 character"))
    channel = await place["ann"].open(target="ben")
    records = await place.records(channel)
    with pytest.raises(Denied) as denied:
        await channel.send("hello")
    assert denied.value.reason == "bad_text"
    assert await place.records(channel) == records


async def test_hooks_are_asked_about_speech_of_participants_in_open_channels_only(place: Team) -> None:
    await place.join("eve")
    shown: list[object] = []
    hook_before(place.hub, lambda event: shown.append(event.data))
    channel = await place["ann"].open(target="ben")
    await channel.set_context(a=1)
    await channel.post("shop.order", {"text": "7"})
    stranger = Envelope("", channel.channel_id, "eve", None, EV_TEXT, {"text": "let me in"})
    with pytest.raises(Denied, match="not_a_participant"):
        await place.hub.post(stranger)
    with pytest.raises(Denied, match="malformed"):
        await channel.post(EV_TEXT, {"text": 7})
    await channel.close()
    with pytest.raises(Denied, match="channel_closed"):
        await channel.send("one more")
    assert shown == []


async def test_a_reason_that_is_no_text_blocks_all_the_same(place: Team) -> None:
    hook_before(place.hub, lambda event: HookResult.block(7))  # type: ignore[arg-type]  # the mistake that is tested
    channel = await place["ann"].open(target="ben")
    with pytest.raises(Denied) as denied:
        await channel.send("hello")
    assert (denied.value.reason, denied.value.detail) == ("blocked", "7")


# Repeated sends


async def test_a_repeated_send_asks_no_hook_and_gives_the_first_envelope(place: Team) -> None:
    shown: list[object] = []
    hook_before(place.hub, lambda event: shown.append(event.data["text"]))
    hook_before(place.hub, hide_pin)
    channel = await place["ann"].open(target="ben")
    for text in ("PIN 1234", "no PIN"):
        first = await channel.send(text, message_id=text)
        assert await channel.send(text, message_id=text) == first
        with pytest.raises(Denied) as denied:
            await channel.send(f"another {text}", message_id=text)
        assert denied.value.reason == "conflict"
    with pytest.raises(Denied) as denied:  # what was recorded is not what was sent
        await channel.send("PIN ****", message_id="PIN 1234")
    assert denied.value.reason == "conflict"
    assert shown == ["PIN 1234", "no PIN"]
    assert await texts(place.hub, channel) == ["PIN ****", "no PIN"]


async def test_a_repeated_send_is_recognised_without_hooks_and_after_a_restart() -> None:
    clock = ManualClock()
    store = KeptStore(clock=clock)
    async with hub_over(store, clock) as hub:
        hook_before(hub, hide_pin)
        ann, _ = await hub.register("ann"), await hub.register("ben")
        channel = await ann.open(target="ben")
        first = await channel.send("1234", message_id="m1")
    async with hub_over(store, clock) as hub:
        again = await (await hub.register("ann")).channel(channel.channel_id)
        assert await again.send("1234", message_id="m1") == first
        with pytest.raises(Denied, match="conflict"):
            await again.send("****", message_id="m1")


async def test_two_sends_of_one_message_at_once_are_one_question(place: Team) -> None:
    may_answer, asked = asyncio.Event(), 0

    async def slow(event: HookEvent) -> HookResult:
        nonlocal asked
        asked += 1
        await may_answer.wait()
        return HookResult.modify(f"version {asked}")

    hook_before(place.hub, slow)
    channel = await place["ann"].open(target="ben")
    sends = [asyncio.ensure_future(channel.send("hello", message_id="m1")) for _ in range(2)]
    await wait_until(lambda: asked == 1)
    await let_others_run()
    may_answer.set()
    first, second = await soon(asyncio.gather(*sends))
    assert first == second
    assert (asked, first.event_data["text"]) == (1, "version 1")


async def test_a_sender_cannot_write_the_mark_of_a_rewritten_text(place: Team) -> None:
    channel = await place["ann"].open(target="ben")
    with pytest.raises(Denied, match="'original' is the hub's own") as denied:
        await channel.post(EV_TEXT, {"text": "hello", "original": "0" * 64})
    assert denied.value.reason == "reserved_field"


# Answers of agents


async def test_an_agents_answer_is_rewritten(place: Team) -> None:
    hook_before(place.hub, hide_pin)
    clerk = Agent("clerk", model=ScriptedModel([says("it is 1234")]))
    reply = await clerk.invoke("which PIN?", hub=place.hub)
    assert reply.text == "it is ****"


async def test_a_blocked_answer_fails_its_turn(place: Team) -> None:
    hook_before(place.hub, hide_pin)
    clerk = Agent("clerk", model=ScriptedModel([says("a rude word"), says("gladly")]))
    with pytest.raises(TurnFailed) as failed:
        await clerk.invoke("help me", hub=place.hub, thread_id="t")
    assert (failed.value.reason, failed.value.detail) == ("denied:blocked", "be polite")
    assert (await clerk.invoke("please", hub=place.hub, thread_id="t")).text == "gladly"
    channel = await clerk.channel("t", place.hub)
    assert [each["reason"] for each in await facts(place.hub, channel, EV_TURN_FAILED)] == ["denied:blocked"]
    assert await texts(place.hub, channel) == ["help me", "please", "gladly"]


async def test_a_rewritten_answer_that_cannot_be_recorded_is_refused(place: Team) -> None:
    hook_before(place.hub, lambda event: HookResult.modify("\0") if event.envelope.sender_id == "clerk" else None)
    clerk = Agent("clerk", model=ScriptedModel([says("yes")]))
    with pytest.raises(TurnFailed, match="refused:bad_text"):
        await clerk.invoke("well?", hub=place.hub)


async def test_the_packets_of_a_workflow_are_rewritten(place: Team) -> None:
    hook_before(place.hub, hide_pin)
    await place.hub.register(Agent("clerk", model=ScriptedModel([says("code 1234")])))
    graph = TransitionGraph("clerk", [], default_target=TerminateTarget("done"))
    channel = await place["ann"].open(type="workflow", target="clerk", knobs={"graph": graph.to_dict()})
    assert await soon(channel.closed()) == "done"
    [packet] = await facts(place.hub, channel, EV_PACKET)
    assert packet["body"] == "code ****"


# The first words of a channel, and of a task


async def test_the_first_words_are_rewritten_and_found_again_by_their_key(place: Team) -> None:
    shown: list[object] = []
    hook_before(place.hub, hide_pin)
    hook_before(place.hub, lambda event: shown.append((event.channel_id, event.data["text"])))
    channel = await place["ann"].open(target="ben", say="PIN 1234", key="k")
    again = await place["ann"].open(target="ben", say="PIN 1234", key="k")
    assert again.channel_id == channel.channel_id
    assert shown == [(channel.channel_id, "PIN ****")]
    for other in ("PIN 5678", "PIN ****"):
        with pytest.raises(Denied, match="another say"):
            await place["ann"].open(target="ben", say=other, key="k")
    unkeyed = await place["ann"].open(target="ben", say="PIN 1234")
    assert await facts(place.hub, unkeyed, EV_TEXT) == [{"text": "PIN ****"}]


async def test_first_words_that_wait_for_a_guest_are_found_again_by_their_key(place: Team) -> None:
    may_accept = asyncio.Event()

    async def accept(invite: Envelope) -> bool:
        await may_accept.wait()
        return True

    hook_before(place.hub, hide_pin)
    await place.hub.register("eve", accept=accept)
    opens = [asyncio.ensure_future(place["ann"].open(target="eve", say="PIN 1234", key="k")) for _ in range(2)]
    await let_others_run()
    may_accept.set()
    first, second = await soon(asyncio.gather(*opens))
    third = await place["ann"].open(target="eve", say="PIN 1234", key="k")
    assert {first.channel_id, second.channel_id, third.channel_id} == {first.channel_id}
    assert await facts(place.hub, first, EV_TEXT) == [{"text": "PIN ****"}]
    with pytest.raises(Denied, match="another say"):
        await place["ann"].open(target="eve", say="PIN 5678", key="k")


async def test_blocked_first_words_open_no_channel(place: Team) -> None:
    hook_before(place.hub, hide_pin)
    with pytest.raises(Denied, match="be polite"):
        await place["ann"].open(target="ben", say="how rude", key="k")
    assert await place.hub.channels() == []
    assert [each["reason"] for each in await place.audited()] == ["blocked"]


async def test_a_failure_over_first_words_is_recorded_in_the_new_channel(place: Team) -> None:
    hook_before(place.hub, lambda event: 1 / 0)
    channel = await place["ann"].open(target="ben", say="hello")
    assert await texts(place.hub, channel) == ["hello"]
    [failed] = await facts(place.hub, channel, EV_HOOK_FAILED)
    assert failed["error"] == "ZeroDivisionError: division by zero"


async def test_what_an_agent_asks_of_another_is_rewritten_or_blocked(place: Team) -> None:
    hook_before(place.hub, hide_pin)
    clerk = Agent("clerk", model=echo)
    asked = await giver(clerk, task="look up 1234").invoke("go", hub=place.hub)
    assert asked.text == "re: look up ****"
    refused = await giver(clerk, name="chief", task="be rude").invoke("go", hub=place.hub)
    assert "blocked" in refused.text
    assert "be polite" in refused.text
    assert await ends(place.hub, refused.channel_id) == ["blocked"]


@pytest.mark.parametrize(("text", "recorded"), [("use 1234", ["use ****"]), ("go away, rude one", [])], ids=str)
async def test_what_a_person_answers_for_an_agent_is_rewritten_or_blocked(text: str, recorded: list[str]) -> None:
    async with suspended() as (place, hub):
        hook_before(hub, hide_pin)
        [waiting] = await hub.approvals()
        deciding = place.people["ann"].decide(waiting.approval_id, "respond", text=text)
        if recorded:
            await deciding
        else:
            with pytest.raises(Denied, match="be polite"):
                await deciding
        assert await place.answers() == recorded
        assert len(await hub.approvals()) == 1 - len(recorded)


# Hooks that fail


FAILURES = [
    (raises, "RuntimeError: no service; api_key=***"),
    (leaves, "Interrupted: SystemExit: 3"),
    (lambda event: False, "it returned False; it should return None or a HookResult"),
    (lambda event: HookResult.modify(7), "UsageError: text is 7; give the text that is to be recorded"),
    (lambda event: HookResult("allow", ""), "it returned HookResult(action='allow', text=''); it should return"),
]


@pytest.mark.parametrize(("hook", "error"), FAILURES, ids=["raises", "leaves", "strange", "no text", "no action"])
async def test_a_hook_that_fails_allows_and_is_recorded(
    place: Team, hook: Callable[[HookEvent], object], error: str
) -> None:
    hook_before(place.hub, hook)
    hook_before(place.hub, hide_pin)
    channel = await place["ann"].open(target="ben")
    assert (await channel.send("1234")).event_data == {"text": "****"}
    log = await place.log(channel)
    [failed] = [each for each in log if each.event_type == EV_HOOK_FAILED]
    assert str(failed.event_data.pop("error")).startswith(error)
    assert failed.event_data == {"trigger": "before_broadcast", "hook": hook.__name__}
    assert (failed.sender_id, failed.audience) == ("hub", [OPERATORS])


@pytest.mark.parametrize(("hook", "error"), FAILURES[:3], ids=["raises", "leaves", "strange"])
async def test_a_required_hook_that_fails_blocks(place: Team, hook: Callable[[HookEvent], object], error: str) -> None:
    hook_before(place.hub, hook, required=True)
    clerk = Agent("clerk", model=ScriptedModel([]))
    channel = await place["ann"].open(target="ben")
    with pytest.raises(Denied) as denied:
        await channel.send("hello")
    assert (denied.value.reason, denied.value.detail) == ("blocked", f"the required hook {hook.__name__!r} failed")
    [failed] = await facts(place.hub, channel, EV_HOOK_FAILED)
    assert str(failed["error"]).startswith(error)
    assert await texts(place.hub, channel) == []
    with pytest.raises(Denied, match="blocked"):
        await clerk.invoke("hello", hub=place.hub)


@pytest.mark.parametrize(("options", "seconds"), [({}, 5), ({"timeout": 0.5}, 0.5)], ids=["by default", "its own"])
async def test_a_slow_hook_holds_a_sender_until_its_timeout(
    place: Team, options: dict[str, float], seconds: float
) -> None:
    hook_before(place.hub, never, **options)
    channel = await place["ann"].open(target="ben")
    sending = asyncio.ensure_future(channel.send("hello"))
    await let_others_run()
    await place.clock.advance(seconds - 0.1)
    assert not sending.done()
    await place.clock.advance(0.1)
    assert (await soon(sending)).event_data == {"text": "hello"}
    [failed] = await facts(place.hub, channel, EV_HOOK_FAILED)
    assert failed["error"] == f"it took longer than {seconds:g} seconds"


async def test_a_sender_that_stops_waiting_has_said_nothing(place: Team) -> None:
    cleaned = asyncio.Event()

    async def slow(event: HookEvent) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    hook_before(place.hub, slow)
    channel = await place["ann"].open(target="ben")
    sending = asyncio.ensure_future(channel.send("hello"))
    await let_others_run()
    sending.cancel()
    await soon(cleaned.wait())
    assert await texts(place.hub, channel) == []


WRONG = [
    (
        {"trigger": "before"},
        "no trigger is called 'before'; there are: HookTrigger.BEFORE_BROADCAST, HookT",
    ),
    ({"trigger": BEFORE}, "the sender waits for it; give execution=HookExecution.SYNC"),
    ({"execution": "sync-ish"}, "execution is 'sync-ish'; give HookExecution.SYNC or HookExecution.ASYNC"),
    ({"priority": 0.5}, "priority is 0.5; give a whole number"),
    ({"required": 1}, "required is 1; give True or False"),
    ({"required": True}, "a hook for AFTER_BROADCAST runs when its cause is recorded, and can stop nothing"),
    ({"timeout": 0}, "timeout is 0; give a number of seconds above 0"),
    ({"timeout": True}, "timeout is True; give a number of seconds above 0"),
    ({"timeout": float("inf")}, "timeout is inf; give a number of seconds above 0"),
]


@pytest.mark.parametrize(("options", "error"), WRONG, ids=str)
async def test_a_hook_that_makes_no_sense_is_refused(place: Team, options: dict[str, object], error: str) -> None:
    with pytest.raises(UsageError) as refused:
        place.hub.hook(**{"trigger": AFTER, **options})  # type: ignore[arg-type]  # the mistakes that are tested
    assert error in str(refused.value)


async def test_what_cannot_be_called_is_no_hook(place: Team) -> None:
    with pytest.raises(UsageError, match="7 cannot be called; a hook is a function that takes a HookEvent"):
        place.hub.hook(AFTER)(7)


async def test_a_closed_hub_takes_no_hooks() -> None:
    async with Hub.open("memory:") as hub:
        pass
    with pytest.raises(UsageError, match="closed"):
        hub.hook(AFTER)


# Closing


async def test_closing_the_hub_waits_for_no_hook() -> None:
    started: list[str] = []

    async def stuck(event: HookEvent) -> None:
        started.append(event.trigger)
        if event.envelope.event_data["text"] == "two":
            await asyncio.Event().wait()

    async with team("ann", "ben") as place:
        hook_before(place.hub, stuck)
        place.hub.hook(AFTER)(never)
        channel = await place["ann"].open(target="ben")
        await channel.send("one")
        sending = asyncio.ensure_future(channel.send("two"))
        await wait_until(lambda: len(started) == 2)
        await soon(place.hub.close())
        with pytest.raises(UsageError, match="this hub is closed"):
            await sending


async def test_a_turn_whose_answer_was_with_a_hook_goes_on_in_the_next_hub() -> None:
    clock = ManualClock()
    store = KeptStore(clock=clock)
    asked: list[str] = []

    async def stuck(event: HookEvent) -> None:
        if event.envelope.sender_id == "clerk":
            asked.append(str(event.data["text"]))
            await asyncio.Event().wait()

    async with hub_over(store, clock) as hub:
        hook_before(hub, stuck)
        ann, _ = (
            await hub.register("ann"),
            await hub.register(Agent("clerk", model=ScriptedModel([says("it is 1234")]))),
        )
        channel = await ann.open(target="clerk", say="which PIN?")
        await wait_until(lambda: bool(asked))
    async with hub_over(store, clock) as hub:
        hook_before(hub, hide_pin)
        await hub.register(Agent("clerk", model=ScriptedModel([])))  # its reply is in the journal
        await wait_until(lambda: hub.core.channels.loaded(channel.channel_id) is not None)
        live = await hub.core.live(channel.channel_id)
        await wait_until(lambda: not live.state.owed)
        assert await texts(hub, channel) == ["which PIN?", "it is ****"]
        assert len(await facts(hub, channel, EV_TURN_RELEASED)) == 1
