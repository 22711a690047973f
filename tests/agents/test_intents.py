"""Intents: what a phrase is, what is matched, and what it leads to without a model."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import (
    Agent,
    Hub,
    Intent,
    ScriptedModel,
    ToolUsageEvent,
    TurnChannel,
    Usage,
    UsageError,
    calls,
    says,
    tool,
)
from antiphon.agents.call_results import Call, ToolResult
from antiphon.agents.intents import call_of_intent, find_intent, normalize_phrase
from antiphon.agents.loop import TurnResult
from antiphon.agents.messages import Answered, Asked
from antiphon.testing import ManualClock
from tests.agents.played_turn import play

MODEL = ScriptedModel([])


@tool
def weather(city: str, days: int = 1) -> str:
    """The weather somewhere."""
    return f"Rain in {city}."


@tool(return_direct=True)
def hours() -> str:
    """When we are open."""
    return "9 to 5."


# What is a phrase


@pytest.mark.parametrize(
    ("phrase", "options", "told"),
    [
        ("", {"answer": "x"}, "the phrase of an intent is ''; give words that a person may say"),
        ("?!", {"answer": "x"}, "the phrase of an intent is '?!'; give words"),
        (" \n", {"answer": "x"}, "the phrase of an intent is ' \\n'; give words"),
        (None, {"answer": "x"}, "the phrase of an intent is None; give words"),
        (7, {"answer": "x"}, "the phrase of an intent is 7; give words"),
        ("hi", {}, "the intent 'hi' stands for nothing; give one of agent=, tool= or answer='…'"),
        ("hi", {"answer": ""}, "the intent 'hi' stands for answer=''; give one of"),
        ("hi", {"agent": ""}, "the intent 'hi' stands for agent=''; give one of"),
        ("hi", {"answer": 7}, "the intent 'hi' stands for answer=7; give one of"),
        ("hi", {"tool": weather}, "the intent 'hi' stands for tool=<tool weather>; give one of"),
        ("hi", {"answer": "x", "tool": "y"}, "the intent 'hi' stands for tool='y', answer='x'; give one of"),
        ("hi", {"agent": "a", "tool": "y"}, "the intent 'hi' stands for agent='a', tool='y'; give one of"),
        ("hi", {"answer": "x", "args": {"a": 1}}, "the intent 'hi' has args={'a': 1}, which only a tool takes"),
        ("hi", {"agent": "x", "args": {"a": 1}}, "the intent 'hi' has args={'a': 1}, which only a tool takes"),
        ("hi", {"tool": "x", "args": [1]}, "args of the intent 'hi' is [1]; give a dict"),
        ("hi", {"tool": "x", "args": None}, "args of the intent 'hi' is None; give a dict"),
        ("hi", {"tool": "x", "args": {"a": {1}}}, "the intent 'hi' cannot be recorded: set is no JSON value"),
        ("hi", {"tool": "x", "args": {7: 1}}, "the intent 'hi' cannot be recorded: a key is 7"),
        ("hi", {"answer": "a\x00"}, "the intent 'hi' cannot be recorded: a text contains a NUL character"),
        ("hi", {"answer": "\ud800"}, "the intent 'hi' cannot be recorded: a text contains half a surrogate pair"),
        ("hi", {"answer": "x", "anywhere": "yes"}, "anywhere of the intent 'hi' is 'yes'; give True or False"),
    ],
    ids=repr,
)
def test_what_an_intent_may_not_be(phrase: str, options: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        Intent(phrase, **options)  # type: ignore[arg-type]
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("intent", "stands_for"),
    [
        (Intent("hi", answer="Hello."), "a fixed answer"),
        (Intent("hi", tool="greet", args={"a": 1}), "the tool greet"),
        (Intent("hi", agent="greeter"), "the agent greeter"),
    ],
)
def test_an_intent_is_a_value_that_says_what_it_stands_for(intent: Intent, stands_for: str) -> None:
    assert intent.stands_for == stands_for
    twin = Intent(intent.phrase, agent=intent.agent, tool=intent.tool, answer=intent.answer, args=dict(intent.args))
    assert (twin, hash(twin)) == (intent, hash(intent))
    with pytest.raises(AttributeError):
        intent.phrase = "ho"  # type: ignore[misc]


def test_arguments_that_change_later_change_nothing() -> None:
    args = {"city": "Rome", "more": ["x"]}
    intent = Intent("weather", tool="weather", args=args)
    args["city"] = "Paris"
    call = call_of_intent(intent)
    call.args["more"].append("y")  # type: ignore[attr-defined]
    assert call_of_intent(intent) == Call("weather", {"city": "Rome", "more": ["x"]}, "intent")
    assert call_of_intent(Intent("bill", agent="billing")) == Call("transfer_to_billing", {}, "intent")


def agent(*intents: object, **options: object) -> Agent:
    below = [Agent("billing", MODEL)]
    return Agent(
        **{"name": "ann", "model": MODEL, "tools": [weather, hours], "agents": below, "intents": intents, **options}
    )


@pytest.mark.parametrize(
    ("intent", "told"),
    [
        (None, "intents of 'ann' holds None; give a list of Intent('phrase', …)"),
        ("hi", "intents of 'ann' holds 'hi'; give a list of Intent('phrase', …)"),
        (Intent("bill", agent="Billing"), "the intent 'bill' of 'ann' leads to the agent Billing; there are: billing"),
        (Intent("bill", agent="ann"), "the intent 'bill' of 'ann' leads to the agent ann; there are: billing"),
        (Intent("sun", tool="wether"), "the intent 'sun' of 'ann' leads to the tool wether; there are: "),
        (Intent("sun", tool="weather"), "the intent 'sun' of 'ann' has args={}. The arguments of weather do not fit:"),
        (
            Intent("sun", tool="weather", args={"city": 7}),
            "the intent 'sun' of 'ann' has args={'city': 7}. The arguments of weather do not fit: city is int, not str",
        ),
        (Intent("sun", tool="hours", args={"x": 1}), "The arguments of hours do not fit: there is no parameter 'x'"),
        (Intent("help", tool="request_help"), "The arguments of request_help do not fit: reason is missing"),
    ],
    ids=repr,
)
def test_an_intent_for_what_is_not_there_is_refused_where_the_agent_is_made(intent: object, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        agent(intent)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "intent",
    [
        Intent("sun", tool="weather", args={"city": "Rome"}),
        Intent("sun", tool="weather", args={"city": "Rome", "days": 3}),
        Intent("time", tool="get_time_date", args={"timezone": "Europe/Rome"}),
        Intent("bill", tool="transfer_to_billing"),
        Intent("help", tool="request_help", args={"reason": "asked"}),
    ],
    ids=repr,
)
def test_an_intent_for_any_tool_that_the_agent_has_or_may_have(intent: Intent) -> None:
    assert agent(intent).intents == (intent,)


def test_an_intent_for_a_tool_of_ones_own_that_has_the_name_of_a_default() -> None:
    mine = tool(weather.function, name="request_help", description="The weather helps.")
    intent = Intent("sun", tool="request_help", args={"city": "Rome"})
    assert agent(intent, tools=[mine]).intents == (intent,)


def test_an_intent_for_a_tool_that_it_does_without_is_refused() -> None:
    with pytest.raises(UsageError, match="leads to the tool get_time_date"):
        agent(Intent("time", tool="get_time_date"), without=["get_time_date"])


def test_agents_with_intents_are_values() -> None:
    intents = [Intent("sun", tool="weather", args={"city": "Rome"})]
    one, two = (Agent("ann", MODEL, tools=[weather], intents=intents, output={"type": "string"}) for _ in range(2))
    assert (one, hash(one)) == (two, hash(two))
    assert one != Agent("ann", MODEL, tools=[weather], output={"type": "string"})


# What is matched


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Opening hours", "opening hours"),
        ("  opening \n\t hours  ", "opening hours"),
        ("Opening hours?!", "opening hours"),
        ("¿Opening hours?", "opening hours"),
        ("“Opening hours”…", "opening hours"),
        ("(opening hours).", "opening hours"),
        ("OPENING\N{NO-BREAK SPACE}HOURS", "opening hours"),
        ("\N{FULLWIDTH LATIN CAPITAL LETTER O}pening hours", "opening hours"),
        ("Straße", "strasse"),
        ("cafe\N{COMBINING ACUTE ACCENT}", "café"),
        ("it's 5 o'clock", "it's 5 o'clock"),
        ("!?", ""),
        ("", ""),
    ],
)
def test_a_text_as_its_words(text: str, words: str) -> None:
    assert normalize_phrase(text) == words


PLAIN = Intent("Opening hours?", answer="9 to 5.")
ANYWHERE = Intent("opening hours", answer="9 to 5.", anywhere=True)


@pytest.mark.parametrize(
    ("text", "plain", "anywhere"),
    [
        ("opening hours", True, True),
        ("OPENING   HOURS!!", True, True),
        (" \nOpening hours. ", True, True),
        ("What are your opening hours?", False, True),
        ("opening hours please", False, True),
        ("Please (opening hours).", False, True),
        ("opening-hours", False, False),
        ("reopening hours", False, False),
        ("opening hours2", False, False),
        ("openinghours", False, False),
        ("opening hourse, or opening hours", False, True),
        ("opening", False, False),
        ("", False, False),
        ("?", False, False),
    ],
)
def test_what_says_a_phrase(text: str, plain: bool, anywhere: bool) -> None:
    assert find_intent([PLAIN], text) == (PLAIN if plain else None)
    assert find_intent([ANYWHERE], text) == (ANYWHERE if anywhere else None)


def test_the_first_that_matches_counts() -> None:
    other = Intent("opening hours", answer="Never.")
    assert find_intent([PLAIN, other], "opening hours") is PLAIN
    assert find_intent([other, ANYWHERE], "opening hours") is other
    assert find_intent([other, ANYWHERE], "your opening hours") is ANYWHERE
    assert find_intent([], "opening hours") is None


@given(st.text(min_size=1, max_size=20), st.sampled_from([" ", "\n", "!", "? "]), st.text(max_size=8))
def test_a_phrase_is_matched_however_it_is_wrapped(phrase: str, mark: str, other: str) -> None:
    if not normalize_phrase(phrase):
        return
    plain, anywhere = Intent(phrase, answer="x"), Intent(phrase, answer="x", anywhere=True)
    for said in (phrase, phrase.upper().casefold(), f"{mark}{phrase}{mark}"):
        if normalize_phrase(said) == normalize_phrase(phrase):
            assert find_intent([plain], said) is plain
            assert find_intent([anywhere], f"other {said} other") is anywhere
    if find_intent([plain], other) is not None:
        assert find_intent([anywhere], other) is anywhere


# What it leads to

SUN = Intent("sun", tool="weather", args={"city": "Rome"})
OPEN = Intent("open", tool="hours")
BILL = Intent("bill", agent="billing")
HI = Intent("hi", answer="Hello.")
LED = agent(SUN, OPEN, BILL, HI)


@pytest.mark.parametrize(
    ("heard", "replies", "trace", "said"),
    [
        ("Hi!", [], [], TurnResult("Hello.")),
        ("@ann hi", [], [], TurnResult("Hello.")),
        ("@lead\nHi.", [], [], TurnResult("Hello.")),
        ("open", [], ["hours"], TurnResult("hours done", tools=("hours",))),
        ("sun", [says("It rains.")], ["weather", "ask ann"], TurnResult("It rains.", tools=("weather",))),
        (
            "bill",
            [says("Mine.")],
            ["transfer_to_billing", "enter billing", "ask billing"],
            TurnResult("Mine.", tools=("transfer_to_billing",), path=("billing",)),
        ),
        ("hi there", [says("So.")], ["ask ann"], TurnResult("So.")),
        ("@nobody hi", [says("So.")], ["ask ann"], TurnResult("So.")),
        (None, [says("So.")], ["ask ann"], TurnResult("So.")),
    ],
)
def test_what_a_phrase_leads_to(heard: str | None, replies: list[object], trace: list[str], said: TurnResult) -> None:
    played = play(LED, *replies, heard=heard)  # type: ignore[arg-type]
    assert played.trace == ["enter ann", *trace]
    assert played.said == said


def test_the_model_is_shown_what_was_called_in_its_name() -> None:
    played = play(LED, says("It rains."), heard="sun")
    call = Call("weather", {"city": "Rome"}, "intent")
    assert played.requests[0].exchange == (Asked("", (call,)), Answered(call, "weather done"))
    failed = play(LED, says("Sorry."), heard="open", results={"hours": ToolResult("Closed.", failed=True)})
    assert failed.requests[0].exchange[1] == Answered(Call("hours", {}, "intent"), "Closed.", True)
    assert failed.said == TurnResult("Sorry.")


def test_a_phrase_counts_once() -> None:
    """The model may call what it likes after it: what the person said is not matched again."""
    played = play(LED, calls("weather", {"city": "Oslo"}), says("Cold."), heard="sun")
    assert played.trace == ["enter ann", "weather", "ask ann", "weather", "ask ann"]


def test_a_phrase_is_for_whoever_is_asked() -> None:
    below = Agent("billing", MODEL, intents=[Intent("hi", answer="Bill here."), Intent("bill", answer="Paid.")])
    lead = Agent("ann", MODEL, agents=[below], intents=[HI, BILL])
    assert play(lead, heard="hi").said == TurnResult("Hello.")
    assert play(lead, heard="hi", last_active=("billing",)).said == TurnResult("Bill here.", path=("billing",))
    assert play(lead, heard="@billing hi").said == TurnResult("Bill here.", path=("billing",))
    handed = play(lead, says("So."), heard="bill")
    assert handed.said == TurnResult("So.", tools=("transfer_to_billing",), path=("billing",))


def test_help_is_asked_for_by_a_phrase_where_there_is_somebody_to_ask() -> None:
    stuck = Intent("help", tool="request_help", args={"reason": "They ask for you."})
    below = Agent("billing", MODEL, intents=[stuck])
    lead = Agent("ann", MODEL, agents=[below])
    played = play(lead, says("So."), heard="Help!", last_active=("billing",))
    assert played.trace == ["enter billing", "request_help", "enter ann", "ask ann"]
    assert played.said == TurnResult("So.", tools=("request_help",))
    assert play(below, says("So."), heard="Help!").trace == ["enter billing", "ask billing"]


# In a hub


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


async def test_a_phrase_is_answered_without_a_model(hub: Hub) -> None:
    model = ScriptedModel([says("It rains.", usage=Usage(5, 2))])
    bob = Agent("bob", model, tools=[weather, hours], intents=[SUN, OPEN, HI])
    told = [await bob.invoke(text, thread_id="t", hub=hub) for text in ("hi", "open", "sun")]
    assert [(reply.text, reply.usage) for reply in told] == [
        ("Hello.", Usage()),
        ("9 to 5.", Usage()),
        ("It rains.", Usage(5, 2)),
    ]
    assert len(model.requests) == 1
    assert model.requests[0].messages[-3:] == [("user", "sun"), ("assistant", ""), ("tool", "Rain in Rome.")]


async def test_what_a_phrase_calls_is_told_like_any_call(hub: Hub) -> None:
    bob = Agent("bob", ScriptedModel([]), tools=[hours], intents=[OPEN])
    events = [event async for event in bob.stream_invoke("open", hub=hub)]
    assert [(event.tool, event.args) for event in events if isinstance(event, ToolUsageEvent)] == [("hours", {})]


async def test_only_what_a_person_says_is_matched(hub: Hub) -> None:
    bob = Agent("bob", ScriptedModel(["By the model."]), intents=[HI])
    asked: list[str] = []

    @tool
    async def ask(channel: TurnChannel) -> str:
        """Ask bob."""
        reply = await channel.delegate(bob, "hi")
        asked.append(reply.text)
        return reply.text

    lead = Agent("ann", ScriptedModel([calls("ask"), "So."]), tools=[ask])
    await lead.invoke("Ask bob.", hub=hub)
    assert asked == ["By the model."]
    assert (await bob.invoke("hi", hub=hub)).text == "Hello."
