"""People among agents: a word put in while a turn is under way waits for its packet, and moves little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_CONTEXT_SET,
    EV_PACKET,
    EV_TEXT,
    AgentTarget,
    Always,
    ContextEquals,
    Denied,
    Envelope,
    FromSpeaker,
    Limits,
    ModelError,
    Request,
    RoundRobinTarget,
    RulesInvalid,
    ScriptedModel,
    TerminateTarget,
    Transition,
    TransitionGraph,
    calls,
    tool,
)
from tests.acceptance.workflow_team import ASSIGNED, FAILED, Pause, Team, Workflow, a_team, rule
from tests.support.waiting import let_others_run, soon

PIPELINE = TransitionGraph.sequence(["alice", "digger", "ada"])
EVERYBODY = ("digger", "ada", "bob", "dana", "emil")


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    async with a_team("alice", "bob", "dana:human", "emil:human") as found:
        yield found


class Dig:
    """A channel in which the agent `digger` is in the middle of a slow tool; `ada` comes after it."""

    def __init__(self, team: Team, workflow: Workflow, pause: Pause, ada: ScriptedModel) -> None:
        self.team, self.workflow, self._pause, self.ada = team, workflow, pause, ada

    async def interjected(self, who: str, text: str) -> asyncio.Task[Envelope]:
        """Let somebody put in a word, which waits."""
        channel = await self.workflow.held_by(who)
        task = asyncio.create_task(channel.send(text))
        await let_others_run()
        return task

    def go_on(self) -> None:
        self._pause.go_on()


async def digging(team: Team, graph: TransitionGraph = PIPELINE, **options: object) -> Dig:
    """`slow="model"`: it is not the tool that takes a while, but what the model says `last`."""
    pause = Pause()
    slow, last = options.pop("slow", "tool"), options.pop("last", "Dug.")

    @tool(timeout=None)
    async def dig() -> str:
        """Take a while."""
        await pause.here()
        return "a hole"

    async def ponder(request: Request) -> object:
        await pause.here()
        return last

    script = [calls("dig"), last] if slow == "tool" else [ponder]
    await team.agent("digger", *script, tools=[dig], limits=Limits(model_seconds=None))
    ada = await team.agent("ada", "Seen.", "Seen again.")
    workflow = await team.open(graph, "alice", *EVERYBODY, **options)
    await workflow.say("alice", "Dig here.")
    await pause.begun()
    return Dig(team, workflow, pause, ada)


# While a turn is under way


async def test_interjection_waits_while_a_tool_runs_slowly(team: Team) -> None:
    here = await digging(team)
    before = await here.workflow.log()
    task = await here.interjected("dana", "Mind the cable!")
    assert not task.done()
    assert await here.workflow.log() == before
    assert here.workflow.next == "digger", "the agent stays the one whose word is expected"
    here.go_on()
    sent = await soon(task)
    assert (sent.sender_id, sent.event_data) == ("dana", {"text": "Mind the cable!"})
    assert await here.workflow.ended() == "sequence_complete"


async def test_interjection_is_admitted_with_the_packet_it_has_waited_for(team: Team) -> None:
    """In the same batch: nobody can be given the turn between the two."""
    here = await digging(team)
    task = await here.interjected("dana", "Mind the cable!")
    here.go_on()
    await soon(task)
    await here.workflow.ended()
    [batch] = [batch for batch in team.batches(here.workflow) if ("dana", EV_TEXT) in batch]
    spoken = [pair for pair in batch if pair[1] in (EV_PACKET, EV_TEXT)]
    assert spoken == [("digger", EV_PACKET), ("dana", EV_TEXT)]


@pytest.mark.parametrize("slow", ["tool", "model"])
async def test_interjections_are_admitted_in_the_order_in_which_they_came(team: Team, slow: str) -> None:
    here = await digging(team, slow=slow)
    words = [("dana", "one"), ("emil", "two"), ("dana", "three")]
    tasks = [await here.interjected(who, text) for who, text in words]
    here.go_on()
    for task in tasks:
        await soon(task)
    await here.workflow.ended()
    assert await here.workflow.said() == [("alice", "Dig here."), ("digger", "Dug."), *words, ("ada", "Seen.")]


async def test_interjection_is_seen_by_the_next_speaker_and_not_by_the_one_it_waited_for(team: Team) -> None:
    here = await digging(team)
    task = await here.interjected("dana", "Mind the cable!")
    here.go_on()
    await soon(task)
    await here.workflow.ended()
    assert here.ada.requests[0].messages == [
        ("user", "alice: Dig here."),
        ("user", "digger: Dug."),
        ("user", "dana: Mind the cable!"),
    ]


async def test_interjection_that_no_rule_matches_moves_nothing(team: Team) -> None:
    """Not even the default target is asked, which would end the channel here."""
    here = await digging(team)
    task = await here.interjected("dana", "Mind the cable!")
    here.go_on()
    await soon(task)
    assert await here.workflow.ended() == "sequence_complete"
    assert [each[0] for each in await here.workflow.said()] == ["alice", "digger", "dana", "ada"]


async def test_interjection_that_a_rule_matches_moves_the_turn(team: Team) -> None:
    graph = TransitionGraph("alice", [rule("dana", "bob"), *PIPELINE.transitions], TerminateTarget("over"))
    here = await digging(team, graph)
    task = await here.interjected("dana", "Bob should look at this.")
    here.go_on()
    await soon(task)
    await here.workflow.comes_to("bob")
    assert here.ada.requests == []
    assert (await here.workflow.log(ASSIGNED))[-1].event_data["reason"] == "from dana"


async def test_interjection_that_a_rule_ends_the_channel_for_ends_it(team: Team) -> None:
    stop = Transition(FromSpeaker("dana"), TerminateTarget("dana has stopped it"))
    here = await digging(team, TransitionGraph("alice", [stop, *PIPELINE.transitions], TerminateTarget("over")))
    task = await here.interjected("dana", "Stop!")
    here.go_on()
    await soon(task)
    assert await here.workflow.ended() == "dana has stopped it"
    assert here.ada.requests == []


async def test_interjection_of_whoever_has_the_turn_next_does_not_use_it_up(team: Team) -> None:
    """It was written before there was anything to answer."""
    dig = await digging(team, TransitionGraph.sequence(["alice", "digger", "dana"]))
    word = await dig.interjected("dana", "mind the cable")
    dig.go_on()
    said = await soon(word)
    assert said.event_data == {"text": "mind the cable", "aside": True}
    assert (dig.workflow.next, dig.workflow.state.status) == ("dana", "active")
    await dig.workflow.say("dana", "well done")
    assert await dig.workflow.ended() == "sequence_complete"


async def test_interjection_that_did_not_use_up_a_turn_can_be_repeated_safely(team: Team) -> None:
    dig = await digging(team, TransitionGraph.sequence(["alice", "digger", "dana"]))
    dana = await dig.workflow.held_by("dana")
    word = asyncio.create_task(dana.send("mind the cable", message_id="m"))
    await let_others_run()
    dig.go_on()
    assert await soon(word) == await dana.send("mind the cable", message_id="m")
    assert dig.workflow.next == "dana"


async def test_interjection_is_no_turn(team: Team) -> None:
    graph = TransitionGraph("alice", PIPELINE.transitions, TerminateTarget("over"), max_turns=3)
    here = await digging(team, graph)
    task = await here.interjected("dana", "Mind the cable!")
    here.go_on()
    sent = await soon(task)
    assert await here.workflow.ended() == "over"
    assert here.workflow.state.turn_count == 3
    assert sent.envelope_id != here.workflow.state.last_envelope_id


async def test_interjection_is_admitted_also_when_the_turn_comes_to_nothing(team: Team) -> None:
    here = await digging(team, last=ModelError("no answer"))
    task = await here.interjected("emil", "Mind the cable!")
    here.go_on()
    sent = await soon(task)
    [failed] = await here.workflow.log(FAILED)
    assert failed.sequence < sent.sequence
    assert here.workflow.next == "dana", "the first person there goes on where an agent could not"


async def test_interjection_that_is_given_up_is_not_recorded(team: Team) -> None:
    here = await digging(team)
    task = await here.interjected("dana", "Never mind.")
    task.cancel()
    await let_others_run()
    here.go_on()
    assert await here.workflow.ended() == "sequence_complete"
    assert ("dana", "Never mind.") not in await here.workflow.said()


async def test_interjection_of_one_message_id_is_recorded_once(team: Team) -> None:
    here = await digging(team)
    dana = await here.workflow.held_by("dana")
    tasks = [asyncio.create_task(dana.send("Mind the cable!", message_id="m1")) for _ in range(2)]
    await let_others_run()
    here.go_on()
    first, second = [await soon(task) for task in tasks]
    assert first == second
    await here.workflow.ended()
    assert [each[0] for each in await here.workflow.said()].count("dana") == 1


async def test_interjection_built_by_hand_waits_as_well(team: Team) -> None:
    here = await digging(team)
    builder = team.hub.adapter_for(here.workflow.channel_id)
    draft = builder.build_text_envelope(sender_id="dana", text="Mind the cable!")
    task = asyncio.create_task(team.hub.post(draft))
    await let_others_run()
    assert not task.done()
    here.go_on()
    sent = await soon(task)
    [packet] = [each for each in await here.workflow.log(EV_PACKET) if each.sender_id == "digger"]
    assert packet.sequence < sent.sequence


# What does not wait


async def test_not_waiting_for_a_packet_a_write_to_the_context_lands_at_once(team: Team) -> None:
    seen = Transition(ContextEquals("stop", True), TerminateTarget("seen at once"))
    here = await digging(team, TransitionGraph("alice", [seen, *PIPELINE.transitions], TerminateTarget("over")))
    dana = await here.workflow.held_by("dana")
    written = await soon(dana.set_context(stop=True))
    assert written.event_type == EV_CONTEXT_SET
    here.go_on()
    assert await here.workflow.ended() == "seen at once"


async def test_not_waiting_for_a_packet_closing_ends_the_channel_at_once(team: Team) -> None:
    here = await digging(team)
    task = await here.interjected("emil", "Wait!")
    await soon((await here.workflow.held_by("dana")).close("enough of this"))
    assert await here.workflow.ended() == "enough of this"
    with pytest.raises(Denied) as caught:
        await soon(task)
    assert caught.value.reason == "channel_closed"
    here.go_on()
    await let_others_run()
    assert await here.workflow.log(EV_PACKET) == []
    assert (await here.workflow.log())[-1].event_type == EV_CHANNEL_CLOSED


async def test_not_waiting_for_a_packet_cancelling_ends_the_turn_at_once(team: Team) -> None:
    here = await digging(team)
    task = await here.interjected("emil", "Wait!")
    assert await soon((await here.workflow.held_by("dana")).cancel("too deep")) == 1
    [failed] = await here.workflow.log(FAILED)
    assert failed.event_data["reason"] == "cancelled"
    assert "too deep" in str(failed.event_data["detail"])
    assert (await soon(task)).sequence > failed.sequence
    assert await here.workflow.log(EV_PACKET) == []
    assert here.workflow.next == "dana"


# Between turns


async def test_between_packets_a_word_is_admitted_at_once_and_the_turn_stays(team: Team) -> None:
    graph = TransitionGraph.sequence(["alice", "bob"])
    workflow = await team.open(graph, "alice", "bob", "dana")
    await workflow.say("alice")
    sent = await soon(workflow.say("dana", "Take your time."))
    assert (workflow.next, workflow.state.turn_count) == ("bob", 1)
    assert workflow.state.last_speaker_id == "alice"
    assert (await workflow.log())[-1] == sent, "nothing follows from it"
    await workflow.say("bob")
    assert await workflow.ended() == "sequence_complete"


async def test_between_packets_a_rule_that_matches_moves_the_turn_at_once(team: Team) -> None:
    graph = TransitionGraph("alice", [rule("dana", "bob")], AgentTarget("alice"))
    workflow = await team.open(graph, "alice", "bob", "dana")
    await workflow.say("dana", "Let bob begin.")
    assert workflow.next == "bob"


async def test_between_packets_a_word_that_the_rule_of_a_round_matches_leaves_the_turn_where_it_is(team: Team) -> None:
    """It matches whatever is said, and neither skips anybody nor comes back to whom a rule has passed over."""
    rules = [rule("alice", "dana"), Transition(Always(), RoundRobinTarget())]
    workflow = await team.open(TransitionGraph("alice", rules, TerminateTarget()), "alice", "bob", "dana", "emil")
    await workflow.say("alice")
    await workflow.say("emil", "Go on.")
    assert workflow.next == "dana"
    assert await workflow.walk("dana", "emil") == ["emil", "alice"]


async def test_an_agent_that_has_not_begun_is_shown_what_was_put_in_before(team: Team) -> None:
    """Nobody runs its turn yet: it is registered only after dana has spoken."""
    await team.join("late:agent")
    workflow = await team.open(TransitionGraph.sequence(["alice", "late"]), "alice", "late", "dana")
    await workflow.say("alice", "Begin.")
    await workflow.say("dana", "Slowly.")
    assert await workflow.assigned() == [["alice"], ["late"], ["late"]]
    [last] = (await workflow.log(ASSIGNED))[-1:]
    assert last.event_data["reason"] == "interjection"
    assert [turn.sequence for turn in workflow.state.owed] == [last.sequence]


# Who may


@pytest.mark.parametrize("who", ["bob", "alice", "ada"])
async def test_nobody_but_people_may_put_in_a_word(team: Team, who: str) -> None:
    """Neither code nor agents, and not the creator either; the log does not show that they have tried."""
    here = await digging(team)
    before = await here.workflow.log()
    with pytest.raises(Denied) as caught:
        await soon(here.workflow.say(who, "Let me."))
    assert (caught.value.reason, caught.value.channel_id) == ("not_expected_speaker", here.workflow.channel_id)
    assert await here.workflow.log() == before
    here.go_on()
    assert await here.workflow.ended() == "sequence_complete"


async def test_interjectors_may_put_in_a_word_as_people_do(team: Team) -> None:
    here = await digging(team, interjectors=["bob"])
    task = await here.interjected("bob", "The sensor says: a cable.")
    assert not task.done()
    here.go_on()
    await soon(task)
    await here.workflow.ended()
    assert here.ada.requests[0].messages[-1] == ("user", "bob: The sensor says: a cable.")


async def test_interjectors_are_participants(team: Team) -> None:
    with pytest.raises(RulesInvalid, match="interjectors names 'zoe', who is not in the channel"):
        await team.open(TransitionGraph.sequence(["alice", "bob"]), "alice", "bob", interjectors=["zoe"])


# A person whose turn it is


async def test_a_person_is_given_the_turn_like_anybody_and_no_agent_answers_until_they_do(team: Team) -> None:
    ada = await team.agent("ada", "Thank you.")
    graph = TransitionGraph.sequence(["alice", "dana", "ada"])
    workflow = await team.open(graph, "alice", "dana", "ada", "emil")
    await workflow.say("alice", "May I?")
    await let_others_run()
    assert (workflow.next, ada.requests) == ("dana", [])
    await workflow.say("emil", "I would.")
    assert workflow.next == "dana", "it is not for another person to answer"
    await workflow.say("dana", "You may.")
    assert await workflow.ended() == "sequence_complete"
    assert workflow.state.turn_count == 3
