"""Words put in: they wait while a turn is under way, come right behind its end, and are never lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    Agent,
    AgentsTarget,
    AgentTarget,
    Channel,
    Denied,
    Envelope,
    FromSpeaker,
    Hub,
    OutcomeUnknown,
    Participant,
    Reply,
    Request,
    ScriptedModel,
    StoreUnavailable,
    TerminateTarget,
    Transition,
    TransitionGraph,
    UsageError,
    says,
)
from antiphon.core.envelope import Instant
from antiphon.core.events import EV_TURN_ASSIGNED, EV_TURN_FAILED
from antiphon.core.execution_events import EV_CALL_STARTED
from antiphon.engines.local import LocalEngine
from antiphon.store.protocol import Appended, Store
from antiphon.testing import Faults, ManualClock, canonical_digest, with_faults
from tests.support.troubled_store import TroubledStore
from tests.support.waiting import let_others_run, soon

LOST = OutcomeUnknown("the answer was lost")
AWAY = StoreUnavailable("the disk is full; nothing was recorded")
LINE = TransitionGraph.sequence(["ann", "bob", "eve"])


class Shelf(TroubledStore):
    """Remembers its batches, stays open for the next hub, and lets whoever looks for an id wait if told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.batches: list[Sequence[Envelope]] = []
        self.slow: asyncio.Event | None = None

    async def append(
        self, channel: str, batch: Sequence[Envelope], *, expected: int, due: Instant | None = None
    ) -> Appended:
        done = await super().append(channel, batch, expected=expected, due=due)
        self.batches.append(batch)
        return done

    async def find(self, channel: str, envelope_ids: Sequence[str]) -> dict[str, Envelope]:
        if self.slow is not None:
            await self.slow.wait()
        for trouble in self.before.pop("find", ()):
            await trouble()
        return dict(await super().find(channel, envelope_ids))


class Thinker:
    """A model that thinks until it may answer; an answer that is an error is raised."""

    def __init__(self, answer: str | Exception = "bob has thought") -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self._answer = answer

    async def __call__(self, request: Request) -> Reply:
        self.asked.set()
        await self.may_answer.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return says(self._answer)


class Floor:
    """Ann, who is code, has asked bob, who thinks; eve comes next. Dana and rita are people, omar is code."""

    def __init__(self, store: Shelf, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.bob, self.eve = Thinker(), ScriptedModel(["eve has read it", "and again"])
        self.seated: dict[str, Participant] = {}
        self._hubs: list[Hub] = []
        self.channel_id = ""

    @property
    def hub(self) -> Hub:
        return self._hubs[-1]

    async def next_hub(self, store: Store | None = None, **agents: object) -> None:
        """Everybody in another hub over the same store. Bob and eve are as before, unless said otherwise."""
        used = store or self.store
        hub = await Hub.over(used, clock=self.clock, engine=LocalEngine(used, self.clock, grace=0.01))
        self._hubs.append(hub)
        for name, kind in {"ann": "service", "dana": "human", "rita": "human", "omar": "service"}.items():
            self.seated[name] = await hub.register(name, kind=kind)
        for name, model in {"bob": self.bob, "eve": self.eve, **agents}.items():
            if model is not None:
                agent = Agent(name, model=model)  # type: ignore[arg-type]
                self.seated[name] = await hub.register(agent)

    async def opened(self, *others: str, type: str = "workflow", **options: object) -> Channel:
        """A channel of ann with these, in which she has asked already."""
        channel = await self.seated["ann"].open(type=type, target=others, **options)  # type: ignore[arg-type]
        self.channel_id = channel.channel_id
        await channel.send("well?")
        return channel

    async def asked(self, graph: TransitionGraph = LINE, **options: object) -> Channel:
        """A workflow with everybody in it. Returns when bob thinks."""
        others = [name for name in self.seated if name != "ann"]
        channel = await self.opened(*others, knobs={"graph": graph, "interjectors": ["omar"]}, **options)
        await soon(self.bob.asked.wait())
        return channel

    async def held_by(self, name: str) -> Channel:
        return await self.seated[name].channel(self.channel_id)

    async def puts_in(self, name: str, text: str, **options: object) -> asyncio.Task[Envelope]:
        """Let somebody begin to say something, and do whatever can be done."""
        channel = await self.held_by(name)
        word = asyncio.create_task(channel.send(text, **options))  # type: ignore[arg-type]
        await let_others_run()
        return word

    async def log(self) -> list[Envelope]:
        return await self.hub.log(self.channel_id)

    async def said(self) -> list[str]:
        """Everything that was said, by whom."""
        return [
            f"{each.sender_id}: {each.event_data.get('text', each.event_data.get('body'))}"
            for each in await self.log()
            if each.event_type in (EV_TEXT, EV_PACKET)
        ]

    async def ended(self) -> str:
        """Let bob answer, and wait for the end."""
        self.bob.may_answer.set()
        return await soon((await self.held_by("ann")).closed())

    async def close(self) -> None:
        for hub in reversed(self._hubs):
            await hub.close()


@pytest.fixture
async def floor() -> AsyncIterator[Floor]:
    clock = ManualClock()
    here = Floor(Shelf(clock), clock)
    await here.next_hub()
    try:
        yield here
    finally:
        await here.close()


ASKED, THOUGHT, READ = "ann: well?", "bob: bob has thought", "eve: eve has read it"


# Waiting


async def test_a_word_waits_for_the_end_of_a_turn_and_is_heard_by_the_next(floor: Floor) -> None:
    await floor.asked()
    word = await floor.puts_in("dana", "mind the step")
    assert not word.done()
    assert await floor.said() == [ASKED]
    assert await floor.ended() == "sequence_complete"
    assert (await word).event_data == {"text": "mind the step"}
    assert await floor.said() == [ASKED, THOUGHT, "dana: mind the step", READ]
    assert [text for _, text in floor.eve.requests[0].messages] == [ASKED, THOUGHT, "dana: mind the step"]


async def test_several_come_in_their_order_in_the_batch_of_the_packet(floor: Floor) -> None:
    await floor.asked()
    words = [await floor.puts_in(name, text) for name, text in (("dana", "1"), ("omar", "2"), ("rita", "3"))]
    words.append(await floor.puts_in("dana", "4"))
    assert not any(word.done() for word in words)
    await floor.ended()
    sequences = [(await word).sequence for word in words]
    assert sequences == sorted(sequences)
    (batch,) = [batch for batch in floor.store.batches if any(each.event_type == EV_PACKET for each in batch)][:1]
    said = [each.event_data for each in batch if each.event_type == EV_TEXT]
    assert said == [{"text": "1"}, {"text": "2"}, {"text": "3"}, {"text": "4"}]
    assert batch[-1].event_type == EV_TURN_ASSIGNED
    assert len(floor.eve.requests) == 1, "she is asked once, when all of it has been said"


async def test_many_words_are_not_too_many(floor: Floor) -> None:
    await floor.asked()
    words = [await floor.puts_in("dana", str(number)) for number in range(150)]
    await floor.ended()
    sequences = [(await word).sequence for word in words]
    assert sequences == sorted(set(sequences))


async def test_what_is_written_to_the_context_does_not_wait(floor: Floor) -> None:
    channel = await floor.asked()
    word = await floor.puts_in("dana", "mind the step")
    await soon((await floor.held_by("omar")).set_context(seen=True))
    assert channel.state.context_vars == {"seen": True}
    await soon((await floor.held_by("dana")).post("myapp.note", {}))
    assert not word.done()
    await floor.ended()
    await word


@pytest.mark.parametrize("name", ["eve", "ann"])
async def test_everybody_else_is_refused_at_once(floor: Floor, name: str) -> None:
    await floor.asked()
    with pytest.raises(Denied, match="not_expected_speaker"):
        await soon((await floor.held_by(name)).send("me too"))
    assert await floor.said() == [ASKED]


async def test_code_that_is_no_interjector_is_refused(floor: Floor) -> None:
    await floor.opened("bob", "omar", knobs={"graph": TransitionGraph.sequence(["ann", "bob"])})
    await soon(floor.bob.asked.wait())
    with pytest.raises(Denied, match="not_expected_speaker"):
        await soon((await floor.held_by("omar")).send("me too"))
    assert await floor.said() == [ASKED]


async def test_a_rule_that_matches_the_word_moves_the_turn(floor: Floor) -> None:
    graph = TransitionGraph(
        "ann",
        [*LINE.transitions, Transition(FromSpeaker("dana"), TerminateTarget("dana ended it"))],
        LINE.default_target,
    )
    await floor.asked(graph)
    word = await floor.puts_in("dana", "stop")
    assert await floor.ended() == "dana ended it"
    assert await floor.said() == [ASKED, THOUGHT, "dana: stop"]
    assert (await word).causation_id is None
    assert floor.eve.requests == []


async def test_a_word_for_some_is_not_shown_to_the_next(floor: Floor) -> None:
    await floor.asked()
    word = await floor.puts_in("dana", "between us", audience=["rita"])
    assert await floor.ended() == "sequence_complete"
    assert (await word).audience == ["rita"]
    assert [text for _, text in floor.eve.requests[0].messages] == [ASKED, THOUGHT]


async def test_a_word_waits_for_everybody_of_a_group(floor: Floor) -> None:
    zed = Thinker("zed has thought")
    floor.seated["zed"] = await floor.hub.register(Agent("zed", model=zed))
    graph = TransitionGraph(
        "ann",
        [
            Transition(FromSpeaker("ann"), AgentsTarget(["bob", "zed"])),
            Transition(FromSpeaker("eve"), TerminateTarget("done")),
        ],
        AgentTarget("eve"),
    )
    await floor.asked(graph)
    await soon(zed.asked.wait())
    word = await floor.puts_in("dana", "both of you")
    floor.bob.may_answer.set()
    await let_others_run(50)
    assert not word.done()
    assert await floor.said() == [ASKED, THOUGHT]
    zed.may_answer.set()
    assert (await soon(word)).event_data == {"text": "both of you"}
    assert await floor.ended() == "done"
    assert (await floor.said())[1:] == [THOUGHT, "zed: zed has thought", "dana: both of you", READ]


# Not waiting


async def test_while_code_or_a_person_has_the_turn_nothing_waits(floor: Floor) -> None:
    graph = TransitionGraph.sequence(["ann", "omar", "rita", "bob"])
    channel = await floor.opened("bob", "dana", "rita", "omar", knobs={"graph": graph})
    for holder in ("omar", "rita"):
        before = channel.state
        await soon(await floor.puts_in("dana", f"to {holder}"))
        assert channel.state.speakers == (holder,)
        assert (channel.state.turn_count, channel.state.assigned_at) == (before.turn_count, before.assigned_at)
        await (await floor.held_by(holder)).send("well.")


async def test_an_agent_that_has_not_begun_is_given_its_turn_again(floor: Floor) -> None:
    await floor.hub.close()
    await floor.next_hub(bob=None)
    channel = await floor.opened("bob", "eve", "dana", knobs={"graph": LINE})
    await soon(await floor.puts_in("dana", "before you begin"))
    given = [each for each in await floor.log() if each.event_type == EV_TURN_ASSIGNED]
    assert [each.event_data["reason"] for each in given] == ["initial speaker", "from ann", "interjection"]
    assert [turn.sequence for turn in channel.state.owed] == [given[-1].sequence]
    model = ScriptedModel(["I have heard both"])
    await floor.hub.register(Agent("bob", model=model))
    assert await soon(channel.closed()) == "sequence_complete"
    assert [text for _, text in model.requests[0].messages] == [ASKED, "dana: before you begin"]
    assert sum(each.event_type == EV_CALL_STARTED for each in await floor.log()) == 2


async def test_in_a_conversation_nothing_waits(floor: Floor) -> None:
    channel = await floor.seated["dana"].open(type="conversation", target="bob")
    await channel.send("well?")
    await soon(floor.bob.asked.wait())
    await soon(channel.send("still there?"))
    assert [turn.speaker for turn in channel.state.owed] == ["bob", "bob"]


async def test_in_a_discussion_a_word_waits_as_well_and_moves_nothing(floor: Floor) -> None:
    channel = await floor.opened("bob", "dana", "rita", type="discussion")
    await soon(floor.bob.asked.wait())
    word = await floor.puts_in("rita", "by the way")
    assert not word.done()
    floor.bob.may_answer.set()
    await soon(word)
    assert await floor.said() == [ASKED, THOUGHT, "rita: by the way"]
    assert channel.state.speakers == ("dana",)


# Giving up, and saying it twice


async def test_whoever_stops_waiting_has_said_nothing(floor: Floor) -> None:
    await floor.asked()
    gone, stays = await floor.puts_in("dana", "never mind"), await floor.puts_in("rita", "I do mind")
    gone.cancel()
    await floor.ended()
    assert (await stays).sender_id == "rita"
    assert await floor.said() == [ASKED, THOUGHT, "rita: I do mind", READ]
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_a_word_that_is_sent_twice_while_it_waits_is_said_once(floor: Floor) -> None:
    await floor.asked()
    words = [await floor.puts_in("dana", "hello", message_id="m1") for _ in range(3)]
    await floor.ended()
    first, second, third = [await word for word in words]
    assert first == second == third
    assert await floor.said() == [ASKED, THOUGHT, "dana: hello", READ]
    assert await (await floor.held_by("dana")).send("hello", message_id="m1") == first, "when all is over, too"


async def test_the_same_id_with_other_words_is_a_conflict(floor: Floor) -> None:
    await floor.asked()
    first = await floor.puts_in("dana", "hello", message_id="m1")
    other = await floor.puts_in("dana", "goodbye", message_id="m1")
    assert not other.done()
    await floor.ended()
    assert (await first).event_data == {"text": "hello"}
    with pytest.raises(Denied, match="conflict"):
        await other
    assert await floor.said() == [ASKED, THOUGHT, "dana: hello", READ]


async def test_if_the_first_of_an_id_stops_waiting_the_second_is_said(floor: Floor) -> None:
    await floor.asked()
    first = await floor.puts_in("dana", "hello", message_id="m1")
    second = await floor.puts_in("dana", "goodbye", message_id="m1")
    first.cancel()
    await floor.ended()
    assert (await second).event_data == {"text": "goodbye"}
    assert (await floor.said())[2:] == ["dana: goodbye", READ]


# The end of the turn, of the channel, of the hub


async def test_when_the_turn_fails_the_person_who_waited_is_given_it_and_has_not_used_it_up(floor: Floor) -> None:
    floor.bob._answer = RuntimeError("boom")
    channel = await floor.asked()
    words = [await floor.puts_in("rita", "oh dear"), await floor.puts_in("dana", "what now?", message_id="m1")]
    floor.bob.may_answer.set()
    aside, word = [await soon(each) for each in words]
    types = [each.event_type for each in floor.store.batches[-1]]
    assert types[-4:] == [EV_TURN_FAILED, EV_TURN_ASSIGNED, EV_TEXT, EV_TEXT]
    assert aside.sequence + 1 == word.sequence
    assert (channel.state.speakers, channel.state.turn_count) == (("dana",), 1)
    assert await (await floor.held_by("dana")).send("what now?", message_id="m1") == word
    await (await floor.held_by("dana")).send("I shall do it myself")
    assert await soon(channel.closed()) == "sequence_complete"


async def test_a_word_of_whoever_comes_next_does_not_use_up_their_turn(floor: Floor) -> None:
    graph = TransitionGraph.sequence(["ann", "bob", "dana"])
    channel = await floor.asked(graph)
    word = await floor.puts_in("dana", "take your time")
    floor.bob.may_answer.set()
    await soon(word)
    assert (channel.state.speakers, channel.state.turn_count) == (("dana",), 2)
    await (await floor.held_by("dana")).send("and now mine")
    assert await floor.said() == [ASKED, THOUGHT, "dana: take your time", "dana: and now mine"]
    assert channel.state.close_reason == "sequence_complete"


async def test_cancelling_a_turn_does_not_wait_and_lets_the_word_in(floor: Floor) -> None:
    """A person is asked what to do then. What she said before is not her answer to that."""
    graph = TransitionGraph(
        "ann", [*LINE.transitions, Transition(FromSpeaker("dana"), AgentTarget("eve"))], AgentTarget("ann")
    )
    channel = await floor.asked(graph)
    word = await floor.puts_in("dana", "let eve do it")
    assert await soon(channel.cancel("too slow")) == 1
    await soon(word)
    assert channel.state.speakers == ("dana",)
    assert await floor.said() == [ASKED, "dana: let eve do it"]
    await (await floor.puts_in("dana", "let eve do it, I said"))
    async with asyncio.timeout(5):
        while channel.state.speakers != ("ann",):
            await let_others_run(1)
    assert await floor.said() == [ASKED, "dana: let eve do it", "dana: let eve do it, I said", READ]


@pytest.mark.parametrize("how", ["closed", "expired", "overdue", "by the packet", "by the failure"])
async def test_when_the_channel_ends_the_word_is_refused(floor: Floor, how: str) -> None:
    graph = TransitionGraph.sequence(["ann", "bob"]) if how == "by the packet" else LINE
    people = ["bob", "eve", "omar"] if how == "by the failure" else ["bob", "eve", "dana"]
    who = people[-1]
    floor.bob._answer = RuntimeError("boom") if how == "by the failure" else "the end"
    channel = await floor.opened(
        *people, knobs={"graph": graph, "interjectors": [who]}, ttl=60 if how == "expired" else None
    )
    await soon(floor.bob.asked.wait())
    word = await floor.puts_in(who, "wait", message_id="m1")
    assert not word.done()
    if how == "closed":
        await soon(channel.close("enough"))
    elif how.startswith("by"):
        floor.bob.may_answer.set()
    else:
        await floor.clock.advance(60)
        await floor.clock.advance(540)
    with pytest.raises(Denied, match="channel_closed"):
        await soon(word)
    assert f"{who}: wait" not in await floor.said()
    refused = [each.event_data for each in await floor.hub.log("system:audit") if "sender_id" in each.event_data]
    assert [(data["sender_id"], data["reason"]) for data in refused] == [(who, "channel_closed")]


async def test_when_the_hub_closes_the_word_is_not_said_and_may_be_sent_again(floor: Floor) -> None:
    await floor.asked()
    word = await floor.puts_in("dana", "hello", message_id="m1")
    await floor.hub.close()
    with pytest.raises(UsageError, match="nothing of it was recorded"):
        await soon(word)
    floor.bob = Thinker()
    await floor.next_hub()
    await soon(floor.bob.asked.wait())
    assert await floor.said() == [ASKED]
    again = await floor.puts_in("dana", "hello", message_id="m1")
    assert not again.done(), "the turn was begun, and goes on"
    assert await floor.ended() == "sequence_complete"
    assert await floor.said() == [ASKED, THOUGHT, "dana: hello", READ]
    await again


async def test_a_word_is_told_of_the_end_of_the_hub_also_while_something_else_is_being_recorded(floor: Floor) -> None:
    """The turn was begun in an earlier hub, so that this one has nothing to wait for but a slow store."""
    await floor.asked()
    await floor.hub.close()
    await floor.next_hub(bob=None)
    word = await floor.puts_in("dana", "hello", message_id="m1")
    floor.store.slow = asyncio.Event()
    note = asyncio.create_task((await floor.held_by("omar")).set_context(seen=True))
    await let_others_run()
    closing = asyncio.create_task(floor.hub.close())
    await soon(floor.hub.core.stopped.wait())
    await let_others_run(50)
    floor.store.slow.set()
    await soon(asyncio.gather(note, closing))
    await let_others_run()
    assert word.done(), "the hub is closed, and nobody will ever say what became of it"
    with pytest.raises(UsageError, match="nothing of it was recorded"):
        await word


async def test_a_turn_that_was_begun_by_somebody_who_is_gone_is_waited_for_until_it_is_overdue(floor: Floor) -> None:
    await floor.asked()
    await floor.hub.close()
    await floor.next_hub(bob=None)
    word = await floor.puts_in("dana", "anybody there?")
    await floor.clock.advance(599)
    assert not word.done()
    await floor.clock.advance(1)
    with pytest.raises(Denied, match="channel_closed"):
        await soon(word)


# A store in trouble


async def test_a_write_of_somebody_else_that_fails_does_not_concern_the_word(floor: Floor) -> None:
    await floor.asked()
    word = await floor.puts_in("dana", "hello")
    for errors in ([AWAY], [LOST] * 3):
        floor.store.fail("append", *errors)
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            await (await floor.held_by("omar")).set_context(seen=True)
    assert not word.done()
    await floor.ended()
    await word
    assert await floor.said() == [ASKED, THOUGHT, "dana: hello", READ]


@pytest.mark.parametrize(("method", "errors"), [("fail", [AWAY]), ("fail", [LOST] * 3), ("lose", [LOST] * 3)])
async def test_a_word_whose_batch_is_in_trouble_is_sent_again_and_said_once(
    floor: Floor, method: str, errors: list[Exception]
) -> None:
    """The packet is offered again by the engine, the word by whoever says it."""
    await floor.asked()
    word = await floor.puts_in("dana", "hello", message_id="m1")
    getattr(floor.store, method)("append", *errors)
    floor.bob.may_answer.set()
    with pytest.raises(type(errors[0])):
        await soon(word)
    again = await floor.puts_in("dana", "hello", message_id="m1")
    await floor.clock.advance(1)
    assert await floor.ended() == "sequence_complete"
    assert await floor.said() == [ASKED, THOUGHT, "dana: hello", READ]
    await again


async def test_a_word_that_waits_goes_on_waiting_when_ids_cannot_be_looked_up(floor: Floor) -> None:
    await floor.asked()
    word = await floor.puts_in("dana", "hello", message_id="m1")
    floor.store.fail("find", AWAY)
    with pytest.raises(StoreUnavailable):
        await (await floor.held_by("omar")).post("myapp.note", {}, message_id="m2")
    await let_others_run()
    assert not word.done()
    await floor.ended()
    assert (await word).event_data == {"text": "hello"}


async def test_a_word_that_waits_goes_on_waiting_when_somebody_else_gives_up(floor: Floor) -> None:
    await floor.asked()
    word = await floor.puts_in("dana", "hello", message_id="m1")
    floor.store.slow = asyncio.Event()
    note = asyncio.create_task((await floor.held_by("omar")).set_context(seen=True))
    await let_others_run()
    note.cancel()
    await let_others_run()
    floor.store.slow.set()
    await let_others_run()
    assert not word.done()
    await floor.ended()
    assert (await word).event_data == {"text": "hello"}


@pytest.mark.parametrize("every", [2, 3, 5])
async def test_lost_replies_change_nothing_of_the_story(every: int) -> None:
    digests = []
    for faults in (Faults(), Faults(lose_reply_every=every), Faults(fail_every=0, lose_reply_every=every + 1)):
        clock = ManualClock()
        here = Floor(Shelf(clock), clock)
        await here.next_hub(with_faults(here.store, faults))
        await here.asked()
        word = await here.puts_in("dana", "hello", message_id="m1")
        await here.ended()
        await word
        digests.append(canonical_digest(await here.log()))
        await here.close()
        assert faults.lost_replies or not faults.lose_reply_every
    assert len(set(digests)) == 1


# A group, and a word before the last of it has begun


async def test_answers_of_a_group_still_count_after_a_word_when_the_last_of_it_is_stopped(floor: Floor) -> None:
    await floor.hub.close()
    await floor.next_hub(eve=None)
    floor.bob.may_answer.set()
    rules = [
        Transition(FromSpeaker("ann"), AgentsTarget(["bob", "eve"])),
        Transition(FromSpeaker("bob"), TerminateTarget("bob answered")),
    ]
    graph = TransitionGraph("ann", rules, TerminateTarget("nobody answered"))
    channel = await floor.opened("bob", "eve", "dana", knobs={"graph": graph})
    async with asyncio.timeout(5):
        while channel.state.speakers != ("eve",):
            await let_others_run(1)
    await soon(await floor.puts_in("dana", "never mind eve"))
    assert await channel.cancel("she is not here") == 1
    assert (channel.state.close_reason, channel.state.speakers) == ("bob answered", ())
