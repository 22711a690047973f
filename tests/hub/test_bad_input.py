"""What nobody should send, and what becomes of it: a named refusal, an untouched log, and a hub that works on."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_INVITE_ACK,
    EV_CONTEXT_SET,
    EV_PACKET,
    EV_TASK_STARTED,
    EV_TEXT,
    AntiphonError,
    BadName,
    BadUrl,
    Channel,
    Denied,
    Envelope,
    Hub,
    Priority,
    RulesInvalid,
    UnknownChannel,
    UnknownParticipant,
    UsageError,
)
from antiphon.core.codec import Malformed, check_json
from tests.support.hub_team import Team, team

KIB = 1024
HUGE = 10**5000
Call = Callable[[Team, Channel], Awaitable[object]]


@dataclasses.dataclass
class Point:
    x: int


def nested(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


def endless() -> dict[str, object]:
    data: dict[str, object] = {}
    data["again"] = [data]
    return data


def wide() -> list[object]:
    data: list[object] = []
    data.extend([data] * 9_000)
    return data


@pytest.fixture
async def here() -> AsyncIterator[Team]:
    async with team("alice", "bob", "carol", "dave") as found:
        yield found


@pytest.fixture
async def channel(here: Team) -> Channel:
    return await here["alice"].open(type="discussion", target=["bob", "carol"], context_vars={"a": 1})


async def still_works(here: Team, channel: Channel) -> None:
    before = len(await here.log(channel))
    sent = await channel.send("a good word")
    assert (sent.sequence, sent.event_data) == (before + 1, {"text": "a good word"})
    assert (await here.log(channel))[before] == sent


def posted(event_type: object, data: object, **options: object) -> Call:
    return lambda here, channel: channel.post(event_type, data, **options)  # type: ignore[arg-type]


def sent(text: object = "hello", **options: object) -> Call:
    return lambda here, channel: channel.send(text, **options)  # type: ignore[arg-type]


def by_hand(**fields: object) -> Call:
    """A hand-built envelope of alice's with some fields of its own."""

    def call(here: Team, channel: Channel) -> Awaitable[object]:
        good = Envelope(
            channel_id=channel.channel_id, sender_id="alice", event_type=EV_TEXT, event_data={"text": "hello"}
        )
        return here.hub.post(dataclasses.replace(good, **fields))  # type: ignore[arg-type]

    return call


DRAFTS: dict[str, tuple[Call, str]] = {
    # Too much
    "text of 256 KiB": (sent("x" * 256 * KIB), "too_large"),
    "text of 256 KiB in bytes, not in letters": (sent("€" * 90 * KIB), "too_large"),
    "data of 256 KiB": (posted("my.thing", {"a": ["x" * KIB] * 260}), "too_large"),
    "data beside a text": (posted(EV_TEXT, {"text": "x", "more": "x" * 256 * KIB}), "too_large"),
    "65 levels": (posted("my.thing", {"a": nested(64)}), "too_deep"),
    "a hundred thousand levels": (posted("my.thing", {"a": nested(100_000)}), "too_deep"),
    "more than 10,000 values": (posted("my.thing", {"a": [0] * 10_000}), "too_large"),
    "a circle": (posted("my.thing", endless()), "too_deep"),
    "a wide circle": (posted("my.thing", {"a": wide()}), "too_large"),
    "a circle in a packet": (posted(EV_PACKET, {"body": "x", "routing": endless()}), "too_deep"),
    # No JSON
    "not a number": (posted("my.thing", {"a": math.nan}), "bad_number"),
    "infinity": (posted("my.thing", {"a": [math.inf]}), "bad_number"),
    "minus infinity": (posted("my.thing", {"a": {"b": -math.inf}}), "bad_number"),
    "an integer of 101 digits": (posted("my.thing", {"a": 10**100}), "bad_number"),
    "an integer of 5,000 digits": (posted("my.thing", {"a": HUGE}), "bad_number"),
    "half a surrogate pair": (sent("\ud83d"), "bad_text"),
    "half a surrogate pair as a key": (posted("my.thing", {"\udc00": 1}), "bad_text"),
    "a NUL": (sent("a\x00b"), "bad_text"),
    "a NUL as a key": (posted("my.thing", {"\x00": 1}), "bad_text"),
    "a NUL among other letters": (sent("ä\x00"), "bad_text"),
    "a date": (posted("my.thing", {"a": datetime(2026, 1, 1, tzinfo=UTC)}), "not_json"),
    "a set": (posted("my.thing", {"a": {1, 2}}), "not_json"),
    "bytes": (posted("my.thing", {"a": b"x"}), "not_json"),
    "a tuple": (posted("my.thing", {"a": (1, 2)}), "not_json"),
    "a dataclass": (posted("my.thing", {"a": Point(1)}), "not_json"),
    "a decimal": (posted("my.thing", {"a": Decimal("1.5")}), "not_json"),
    "an enumeration": (posted("my.thing", {"a": Priority.URGENT}), "not_json"),
    "a number as a key": (posted("my.thing", {1: "a"}), "not_json"),
    "a 5,000-digit number as a key": (posted("my.thing", {HUGE: "a"}), "not_json"),
    "data that is a list": (posted("my.thing", ["a"]), "not_json"),
    "data that is None": (posted("my.thing", None), "not_json"),
    "data that is text": (posted("my.thing", "text"), "not_json"),
    # Event types
    "a type of the hub's": (posted(EV_CHANNEL_CLOSED, {"reason": "mine"}), "reserved_event"),
    "an acknowledgement by hand": (posted(EV_CHANNEL_INVITE_ACK, {}), "reserved_event"),
    "a task event": (posted(EV_TASK_STARTED, {}), "reserved_event"),
    "an unknown type under the first prefix": (posted("ag2.msg.video", {}), "reserved_event"),
    "a type under the second prefix": (posted("antiphon.turn.assigned", {"speakers": ["bob"]}), "reserved_event"),
    "a type without a namespace": (posted("review", {}), "bad_event_type"),
    "an empty type": (posted("", {}), "bad_event_type"),
    "a type with spaces": (posted("my. thing", {}), "bad_event_type"),
    "a type with a NUL": (posted("my.thing\x00", {}), "bad_event_type"),
    "a type with a line end": (posted("my.thing\n", {}), "bad_event_type"),
    "a type with a slash": (posted("my.../etc/passwd", {}), "bad_event_type"),
    "a type of 200 letters": (posted("my." + "x" * 200, {}), "bad_event_type"),
    "a type that is a number": (posted(7, {}), "bad_event_type"),
    "a type that is a 5,000-digit number": (posted(HUGE, {}), "bad_event_type"),
    "a type that is None": (posted(None, {}), "bad_event_type"),
    # Shapes of our own types
    "a text that is none": (sent(7), "malformed"),
    "no text at all": (posted(EV_TEXT, {}), "malformed"),
    "a text of None": (sent(None), "malformed"),
    "a packet without a body": (posted(EV_PACKET, {"routing": {}}), "malformed"),
    "a packet whose routing is text": (posted(EV_PACKET, {"body": "x", "routing": "bob"}), "malformed"),
    "a packet whose updates are a list": (posted(EV_PACKET, {"body": "x", "context_updates": []}), "malformed"),
    "a context that sets a list": (posted(EV_CONTEXT_SET, {"set": []}), "malformed"),
    "a context that deletes numbers": (posted(EV_CONTEXT_SET, {"delete": [1]}), "malformed"),
    "a context with something else": (posted(EV_CONTEXT_SET, {"unset": ["a"]}), "malformed"),
    "a context key that is a number": (lambda here, channel: channel.delete_context(7), "malformed"),  # type: ignore[arg-type]
    "a context value that is a date": (
        lambda here, channel: channel.set_context(at=datetime(2026, 1, 1, tzinfo=UTC)),
        "not_json",
    ),
    # Edges
    "an empty audience": (sent(audience=[]), "bad_audience"),
    "an audience that is text": (sent(audience="bob"), "bad_audience"),
    "an audience that is a tuple": (sent(audience=("bob",)), "bad_audience"),
    "an audience of numbers": (sent(audience=[7]), "bad_audience"),
    "an audience of 5,000-digit numbers": (sent(audience=[HUGE]), "bad_audience"),
    "an audience with a deep list": (sent(audience=[nested(100_000)]), "bad_audience"),
    "an audience of a thousand and one": (sent(audience=["bob"] * 1001), "bad_audience"),
    "an audience that nobody is": (sent(audience=["zoe"]), "unknown_audience"),
    "an audience outside the channel": (sent(audience=["bob", "dave"]), "unknown_audience"),
    "an audience of operators": (sent(audience=["hub:operators"]), "unknown_audience"),
    "a cause that is a number": (sent(causation_id=7), "bad_causation"),
    "a cause that is a 5,000-digit number": (sent(causation_id=HUGE), "bad_causation"),
    "an empty cause": (sent(causation_id=""), "bad_causation"),
    "a cause of a thousand letters": (sent(causation_id="x" * 1000), "bad_causation"),
    "a cause with a NUL": (sent(causation_id="a\x00"), "bad_causation"),
    "a priority that is a number": (sent(priority=1), "bad_priority"),
    "a priority that is text": (sent(priority="URGENT"), "bad_priority"),
    "a priority that is a 5,000-digit number": (sent(priority=HUGE), "bad_priority"),
    # Forgeries
    "an id of its own": (by_hand(envelope_id="mine"), "forged_id"),
    "a sequence of its own": (by_hand(sequence=1), "forged_sequence"),
    "a sequence that is text": (by_hand(sequence="1"), "forged_sequence"),
    "a sequence that is False": (by_hand(sequence=False), "forged_sequence"),
    "a 5,000-digit sequence": (by_hand(sequence=HUGE), "forged_sequence"),
    "a time of its own": (by_hand(created_at="2020-01-01T00:00:00.000000Z"), "forged_time"),
    "the hub as sender": (by_hand(sender_id="hub"), "not_a_participant"),
    "nobody as sender": (by_hand(sender_id=""), "not_a_participant"),
    "somebody unknown as sender": (by_hand(sender_id="zoe"), "not_a_participant"),
    "somebody outside as sender": (by_hand(sender_id="dave"), "not_a_participant"),
    "a list as sender": (by_hand(sender_id=["alice"]), "not_a_participant"),
    "a 5,000-digit number as sender": (by_hand(sender_id=HUGE), "not_a_participant"),
    "somebody whose turn it is not": (by_hand(sender_id="bob"), "not_expected_speaker"),
    "a hand-built circle": (by_hand(event_type="my.thing", event_data=endless()), "too_deep"),
}


@pytest.mark.parametrize(("call", "reason"), DRAFTS.values(), ids=DRAFTS)
async def test_a_bad_draft_is_refused_by_name(here: Team, channel: Channel, call: Call, reason: str) -> None:
    before, state = await here.records(channel), channel.state
    with pytest.raises(Denied) as caught:
        await call(here, channel)
    assert caught.value.reason == reason
    assert caught.value.channel_id == channel.channel_id
    assert caught.value.detail
    assert reason in str(caught.value)
    assert channel.channel_id in str(caught.value)
    assert await here.records(channel) == before
    assert channel.state == state
    assert [refusal["reason"] for refusal in await here.audited()] == [reason]
    await still_works(here, channel)


async def test_a_refusal_is_recorded_without_what_was_said(here: Team, channel: Channel) -> None:
    with pytest.raises(Denied):
        await channel.send("a secret word", audience=["dave"])
    recorded = repr(await here.hub.log("system:audit"))
    assert "alice" in recorded
    assert "secret" not in recorded


async def test_a_closed_channel_takes_nothing(here: Team, channel: Channel) -> None:
    await channel.close("enough")
    before = await here.records(channel)
    for call in (sent(), posted("my.thing", {}), by_hand(), lambda here, channel: channel.set_context(a=2)):
        with pytest.raises(Denied, match="enough") as caught:
            await call(here, channel)
        assert caught.value.reason == "channel_closed"
    assert await here.records(channel) == before
    assert await channel.close("again") == "enough"


async def test_a_mistyped_option_is_no_silent_broadcast(here: Team, channel: Channel) -> None:
    before = await here.records(channel)
    with pytest.raises((TypeError, UsageError), match="audiences"):
        await channel.send("for bob alone", audiences=["bob"])  # type: ignore[call-arg]
    assert await here.records(channel) == before


async def test_a_large_draft_does_not_harm_its_neighbours() -> None:
    """The whole envelope counts, not only its data; the limit is told to the one who broke it."""
    name = "b" * 48
    async with team("alice", name) as here:
        channel = await here["alice"].open(target=name)
        before = await here.records(channel)
        with pytest.raises(Denied) as caught:
            await channel.send("x" * 262_100, audience=[name] * 1000)
        assert caught.value.reason == "too_large"
        assert await here.records(channel) == before
        await still_works(here, channel)


# Calls that are wrong in themselves


def opened(**options: object) -> Call:
    return lambda here, channel: here["alice"].open(**{"target": "bob", **options})  # type: ignore[arg-type]


def subscribed(**options: object) -> Call:
    return lambda here, channel: anext(here.hub.subscribe(channel.channel_id, **options))  # type: ignore[arg-type]


CALLS: dict[str, tuple[Call, type[AntiphonError], str]] = {
    "an empty message id": (sent(message_id=""), UsageError, "''"),
    "a message id that is a number": (sent(message_id=7), UsageError, "7"),
    "a message id that is a 5,000-digit number": (sent(message_id=HUGE), UsageError, "message_id"),
    "a message id of 201 letters": (sent(message_id="x" * 201), UsageError, "xxx"),
    "a message id with a NUL": (sent(message_id="a\x00"), UsageError, "NUL"),
    "a message id with half a letter": (sent(message_id="\ud800"), UsageError, "surrogate"),
    "an empty reason to close": (lambda here, channel: channel.close(""), UsageError, "''"),
    "a reason that is a number": (lambda here, channel: channel.close(7), UsageError, "7"),  # type: ignore[arg-type]
    "a reason with a NUL": (lambda here, channel: channel.close("\x00"), UsageError, "NUL"),
    "a ttl of 0": (opened(ttl=0), UsageError, "0"),
    "a negative ttl": (opened(ttl=-5), UsageError, "-5"),
    "a ttl that is no number": (opened(ttl=math.nan), UsageError, "nan"),
    "an infinite ttl": (opened(ttl=math.inf), UsageError, "inf"),
    "a ttl that is text": (opened(ttl="60"), UsageError, "'60'"),
    "a ttl that is True": (opened(ttl=True), UsageError, "True"),
    "a 5,000-digit ttl": (opened(ttl=HUGE), UsageError, "ttl"),
    "a ttl of more than a hundred years": (
        opened(ttl=1e300),
        UsageError,
        "1e+300; give a number of seconds above 0, at most 3162240000",
    ),
    "an unknown channel type": (opened(type="seance"), RulesInvalid, "'seance'"),
    "a channel type of the hub's": (opened(type="system"), RulesInvalid, "'system'"),
    "a channel type that is a list": (opened(type=["discussion"]), UsageError, "discussion"),
    "a channel type that is None": (opened(type=None), UsageError, "None"),
    "an unknown knob": (opened(knobs={"volume": 11}), RulesInvalid, "'volume'"),
    "knobs that are a list": (opened(knobs=["volume"]), UsageError, "volume"),
    "knobs that are a deep list": (opened(knobs=nested(100_000)), UsageError, "knobs"),
    "knobs that are no JSON": (opened(knobs={"writers": {1}}), UsageError, "set"),
    "knobs in a circle": (opened(knobs=endless()), UsageError, "knobs"),
    "an unknown tier": (opened(knobs={"tier": "reckless"}), RulesInvalid, "'reckless'"),
    "an unknown guard": (opened(knobs={"guards": ["cerberus"]}), RulesInvalid, "'cerberus'"),
    "an unknown expectation": (
        opened(knobs={"expectations": [{"name": "smile_within", "seconds": 1}]}),
        RulesInvalid,
        "'smile_within'",
    ),
    "an unknown handler": (
        opened(knobs={"expectations": [{"name": "max_silence", "seconds": 1, "handler": "panic"}]}),
        RulesInvalid,
        "'panic'",
    ),
    "negative seconds": (opened(knobs={"expectations": [{"name": "max_silence", "seconds": -1}]}), RulesInvalid, "-1"),
    "seconds that are text": (
        opened(knobs={"expectations": [{"name": "max_silence", "seconds": "60"}]}),
        RulesInvalid,
        "60",
    ),
    "an expectation without seconds": (opened(knobs={"expectations": [{"name": "max_silence"}]}), RulesInvalid, "max"),
    "a mistyped field of an expectation": (
        opened(knobs={"expectations": [{"name": "max_silence", "seconds": 5, "handlr": "auto_close"}]}),
        RulesInvalid,
        "no field 'handlr'; it has: name, seconds, handler",
    ),
    "an expectation that is a name": (
        opened(knobs={"expectations": ["max_silence"]}),
        RulesInvalid,
        "'max_silence': it is str, not dict",
    ),
    "expectations that are a dict": (opened(knobs={"expectations": {"max_silence": 1}}), RulesInvalid, "max_silence"),
    "writers that are a list": (opened(knobs={"writers": ["alice"]}), RulesInvalid, "alice"),
    "writers that are an empty list": (opened(knobs={"writers": []}), RulesInvalid, "[]; give a dict"),
    "a writer that is a list": (opened(knobs={"writers": {"a": [["bob"]]}}), RulesInvalid, "[['bob']]"),
    "a writer who is not here": (
        opened(knobs={"writers": {"a": ["carol"]}}),
        RulesInvalid,
        "writers of 'a' names 'carol'",
    ),
    "writers of a key that are text": (opened(knobs={"writers": {"a": "alice"}}), RulesInvalid, "alice"),
    "an interjector who is not here": (opened(knobs={"interjectors": ["carol"]}), RulesInvalid, "'carol', who is not"),
    "a context that is no JSON": (opened(context_vars={"a": Point(1)}), UsageError, "Point"),
    "a context that is a list": (opened(context_vars=[1]), UsageError, "1"),
    "nobody to talk to": (opened(target=[]), RulesInvalid, "exactly 2"),
    "three in a conversation": (opened(target=["bob", "carol"]), RulesInvalid, "exactly 2"),
    "three in a consultation": (opened(type="consulting", target=["bob", "carol"]), RulesInvalid, "exactly 2"),
    "one in a discussion": (opened(type="discussion", target=[]), RulesInvalid, "at least 2"),
    "somebody unknown": (opened(target="zoe"), UnknownParticipant, "'zoe'"),
    "somebody spelt differently": (opened(target="Bob"), UnknownParticipant, "'Bob'; did you mean 'bob'?"),
    "somebody who is the hub": (
        opened(type="discussion", target=["bob", "hub"]),
        UnknownParticipant,
        "'hub'; the name 'hub' is taken by the hub itself",
    ),
    "somebody who is a number": (opened(target=[7]), UnknownParticipant, "7"),
    "somebody who is a 5,000-digit number": (opened(target=[HUGE]), UnknownParticipant, "no participant"),
    "somebody who is a path": (opened(target="../bob"), UnknownParticipant, "'../bob'"),
    "a target that is None": (opened(target=None), UsageError, "None"),
    "a target that is a number": (opened(target=7), UsageError, "7"),
    "oneself": (opened(target="alice"), UsageError, "'alice', who opens the channel"),
    "somebody twice": (
        opened(type="discussion", target=["bob", "bob"]),
        UsageError,
        "'bob' twice; name everybody once",
    ),
    "an unknown kind": (lambda here, channel: here.hub.register("zoe", kind="robot"), UsageError, "'robot'"),
    "a kind that is a list": (lambda here, channel: here.hub.register("zoe", kind=["agent"]), UsageError, "agent"),  # type: ignore[arg-type]
    "another kind than before": (
        lambda here, channel: here.hub.register("bob", kind="human"),
        UsageError,
        "'bob'",
    ),
    "somebody who is here": (lambda here, channel: here.hub.register("alice"), UsageError, "'alice'"),
    "a hand-built envelope that is none": (lambda here, channel: here.hub.post({"text": "hi"}), UsageError, "dict"),  # type: ignore[arg-type]
    "a log from before the beginning": (lambda here, channel: here.hub.log(channel.channel_id, -1), UsageError, "-1"),
    "a log from a word on": (lambda here, channel: here.hub.log(channel.channel_id, "two"), UsageError, "two"),  # type: ignore[arg-type]
    "a log of a channel in hand": (
        lambda here, channel: here.hub.log(channel),  # type: ignore[arg-type]
        UnknownChannel,
        "; give its channel_id",
    ),
    "a negative lag": (subscribed(max_lag=-1), UsageError, "-1"),
    "a lag that is text": (subscribed(max_lag="10"), UsageError, "'10'"),
    "a subscriber that is a list": (subscribed(participant=["alice"]), UnknownChannel, "no channel"),
    "a subscriber from outside": (subscribed(participant="dave"), UnknownChannel, "no channel"),
    "a wait that is text": (lambda here, channel: channel.closed(timeout="5"), UsageError, "'5'"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "error", "named"), CALLS.values(), ids=CALLS)
async def test_a_wrong_call_is_an_error_that_names_the_value(
    here: Team, channel: Channel, call: Call, error: type[AntiphonError], named: str
) -> None:
    before, rows = await here.records(channel), await here.hub.channels(system=True)
    with pytest.raises(error) as caught:
        await call(here, channel)
    assert isinstance(caught.value, UsageError)
    assert named in str(caught.value)
    assert await here.records(channel) == before
    assert await here.hub.channels(system=True) == rows
    await still_works(here, channel)


PATHS = ["../other", "/etc/passwd", "..", ".", "a/../b", "C:\\x", "", "a\x00b", "a b", "x" * 500, "ä", "a\n"]
NAMES = [
    *PATHS,
    "-alice",
    "_alice",
    "al.ice",
    "al:ice",
    "al@ice",
    "a" * 49,
    "ålice",
    "\N{MATHEMATICAL FRAKTUR SMALL A}lice",
    "alice\n",
    "hub",
    "HUB",
    "human",
    "Human",
    "system",
    "sYstem",
    "Alice",
    "ALICE",
    7,
    None,
    b"alice",
    ["alice"],
    HUGE,
    "\ud800",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30] if name != HUGE else "5,000 digits")
async def test_a_bad_name_is_refused(here: Team, channel: Channel, name: object) -> None:
    registry = await here.hub.log("system:registry")
    with pytest.raises(BadName) as caught:
        await here.hub.register(name)  # type: ignore[arg-type]
    if name != HUGE:
        assert repr(name)[:40] in str(caught.value)
    assert await here.hub.log("system:registry") == registry
    await still_works(here, channel)


@pytest.mark.parametrize("name", ["a", "7", "A-b_c", "x" * 48, "0-0", "con", "nul", "hub2"])
async def test_a_good_name_is_taken(name: str) -> None:
    async with team(name, "other") as here:
        channel = await here[name].open(target="other")
        assert (await channel.send("hello")).sender_id == name


@pytest.mark.parametrize(
    "channel_id",
    [*PATHS, "unknown", 7, None, b"x", HUGE],
    ids=lambda each: ascii(each)[:30] if each != HUGE else "5,000",
)
async def test_a_channel_that_is_none_does_not_exist(here: Team, channel: Channel, channel_id: object) -> None:
    for call in (
        lambda: here["alice"].channel(channel_id),  # type: ignore[arg-type]
        lambda: here.hub.log(channel_id),  # type: ignore[arg-type]
        lambda: anext(here.hub.subscribe(channel_id)),  # type: ignore[arg-type]
        lambda: by_hand(channel_id=channel_id)(here, channel),
    ):
        with pytest.raises(UnknownChannel) as caught:
            await call()
        if isinstance(channel_id, str):
            assert repr(channel_id)[:60] in str(caught.value)
    await still_works(here, channel)


async def test_a_channel_of_others_does_not_exist(here: Team, channel: Channel) -> None:
    """It is told apart from one that is not there by nothing."""
    for call in (
        lambda: here["dave"].channel(channel.channel_id),
        lambda: anext(here.hub.subscribe(channel.channel_id, participant="dave")),
        lambda: anext(here.hub.subscribe(channel.channel_id, participant="zoe")),
        lambda: here["dave"].channel("system:registry"),
    ):
        with pytest.raises(UnknownChannel):
            await call()


URLS = [
    "",
    "memory",
    "memory://",
    "mysql:///team.db",
    "file:///tmp/team.db",
    "sqlite:",
    "sqlite://",
    "sqlite:///",
    "sqlite://host/team.db",
    "sqlite:///te\x00am.db",
    "sqlite:///:memory:",
    "team.db",
    "/tmp/team.db",
    " memory:",
    None,
    7,
    Path("team.db"),
]


@pytest.mark.parametrize("url", URLS, ids=ascii)
async def test_a_bad_url_is_refused_and_nothing_is_made(
    url: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadUrl) as caught:
        await Hub.open(url)  # type: ignore[arg-type]
    assert repr(url) in str(caught.value) or str(url) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["postgresql://someone:secret@localhost/antiphon", "postgres://localhost/antiphon"])
async def test_a_store_that_is_not_there_yet_is_not_replaced(url: str) -> None:
    with pytest.raises(AntiphonError, match="PostgreSQL") as caught:
        await Hub.open(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("where", ["missing/team.db", "file.txt/team.db", "."])
async def test_a_place_that_cannot_be_used_is_an_error(where: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("not a folder")
    with pytest.raises(AntiphonError, match=str(tmp_path)):
        await Hub.open(f"sqlite:///{tmp_path / where}")


@pytest.mark.parametrize("option", [{"engine": "steam"}, {"tenant": "../other"}, {"tenant": ""}, {"tenant": None}])
async def test_a_bad_option_of_the_hub_is_named(option: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=str(next(iter(option.values()))) or "''"):
        await Hub.open("memory:", **option)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [[[0] * 9_000] * 9_000, wide()], ids=["shared", "circular"])
def test_counting_is_not_fooled_by_sharing(value: object) -> None:
    """A small value that refers to itself many times is counted as it would be written, and no further."""
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="more than 10000"):
            check_json(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * KIB * KIB


@pytest.mark.parametrize(
    ("event_type", "data"),
    [
        ("ag2.context.set", {"set": {"secret": 1}, "delete": []}),
        ("ag2.packet", {"body": "hush", "context_updates": {"set": {"secret": 1}, "delete": []}}),
    ],
)
async def test_context_is_not_written_to_a_few(
    here: Team, channel: Channel, event_type: str, data: dict[str, object]
) -> None:
    """Everybody reads the context, so an audience would promise what it cannot keep."""
    with pytest.raises(Denied) as caught:
        await channel.post(event_type, data, audience=["bob"])
    assert caught.value.reason == "bad_audience"
    assert "secret" not in channel.state.context_vars
