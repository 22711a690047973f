"""Envelopes and events: what everything that flows between participants looks like, who sees it, and what it moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from uuid import UUID

import pytest

import antiphon
from antiphon import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_EXPIRED,
    EV_CHANNEL_INVITE,
    EV_CHANNEL_INVITE_ACK,
    EV_CHANNEL_INVITE_REJECT,
    EV_CHANNEL_OPENED,
    EV_EXPECTATION_VIOLATED,
    EV_PACKET,
    EV_TEXT,
    Channel,
    Denied,
    Envelope,
    FullTranscript,
    Hub,
    NamedTranscript,
    NamedWindowedSummary,
    Participant,
    Priority,
    WindowedSummary,
    visible_to,
)
from antiphon.testing import ManualClock

START = "2026-01-01T00:00:00.000000Z"


class Team:
    """alice and bob are code, carol is an agent, dana is a person; the clock stands until it is moved."""

    def __init__(self, hub: Hub, clock: ManualClock) -> None:
        self.hub, self.clock = hub, clock
        self.people: dict[str, Participant] = {}

    async def discussion(self, *others: str, **options: object) -> dict[str, Channel]:
        """A discussion that alice opens, as each of its participants holds it."""
        channel = await self.people["alice"].open(type="discussion", target=list(others), **options)  # type: ignore[arg-type]
        held = {name: await self.people[name].channel(channel.channel_id) for name in others}
        return {"alice": channel, **held}


@pytest.fixture
async def team() -> AsyncIterator[Team]:
    clock = ManualClock()
    async with Hub.open("memory:", clock=clock) as hub:
        found = Team(hub, clock)
        for name, kind in (("alice", "service"), ("bob", "service"), ("carol", "agent"), ("dana", "human")):
            found.people[name] = await hub.register(name, kind=kind)
        yield found


async def inbox_of(reader: Participant) -> list[Envelope]:
    """Everything that waits for somebody."""
    inbox = reader.inbox()
    found = [await asyncio.wait_for(anext(inbox), 5) for _ in range(await reader.pending())]
    await inbox.aclose()  # type: ignore[attr-defined]  # an async generator
    return found


# The envelope


def test_an_envelope_has_exactly_ten_fields_in_this_order() -> None:
    assert is_dataclass(Envelope)
    assert [field.name for field in fields(Envelope)] == [
        "envelope_id",
        "channel_id",
        "sender_id",
        "audience",
        "event_type",
        "event_data",
        "causation_id",
        "priority",
        "created_at",
        "sequence",
    ]
    assert hasattr(Envelope, "__slots__")


def test_what_the_sender_need_not_say_has_a_default() -> None:
    defaults = {field.name: field.default for field in fields(Envelope) if field.default is not MISSING}
    assert defaults["causation_id"] is None
    assert defaults["priority"] is Priority.NORMAL
    assert defaults["created_at"] == ""
    assert defaults["sequence"] == 0


async def test_the_hub_stamps_id_time_and_sequence_when_it_admits(team: Team) -> None:
    channels = await team.discussion("bob")
    await team.clock.advance(90)
    first = await channels["alice"].send("hello")
    second = await channels["bob"].send("hello yourself")
    assert {UUID(first.envelope_id).version, UUID(second.envelope_id).version} == {7}
    assert first.envelope_id != second.envelope_id
    assert first.created_at == "2026-01-01T00:01:30.000000Z"
    assert second.sequence > first.sequence


async def test_everything_else_comes_from_the_sender(team: Team) -> None:
    channels = await team.discussion("bob")
    cause = (await team.hub.log(channels["alice"].channel_id))[0].envelope_id
    draft = Envelope(
        channel_id=channels["alice"].channel_id,
        sender_id="alice",
        audience=["bob"],
        event_type="myapp.review_request",
        event_data={"id": 7, "tags": ["a", None, 1.5]},
        causation_id=cause,
        priority=Priority.URGENT,
    )
    sent = await team.hub.post(draft)
    assert (sent.channel_id, sent.sender_id, sent.audience) == (draft.channel_id, "alice", ["bob"])
    assert (sent.event_type, sent.event_data) == ("myapp.review_request", {"id": 7, "tags": ["a", None, 1.5]})
    assert (sent.causation_id, sent.priority) == (cause, Priority.URGENT)
    assert (await team.hub.log(draft.channel_id))[-1] == sent


@pytest.mark.parametrize(
    "stamp", [{"envelope_id": "mine"}, {"created_at": START}, {"sequence": 1}], ids=lambda stamp: next(iter(stamp))
)
async def test_a_sender_cannot_stamp(team: Team, stamp: dict[str, object]) -> None:
    channels = await team.discussion("bob")
    draft = {
        "channel_id": channels["alice"].channel_id,
        "sender_id": "alice",
        "event_type": EV_TEXT,
        "event_data": {"text": "x"},
        **stamp,
    }
    with pytest.raises(Denied, match="forged"):
        await team.hub.post(Envelope(**draft))  # type: ignore[arg-type]


async def test_sequences_count_up_from_one_in_each_channel_for_itself(team: Team) -> None:
    one, other = await team.discussion("bob"), await team.discussion("carol")
    for _ in range(3):
        await one["alice"].set_context(a=1)
        await other["alice"].set_context(a=1)
    for channels in (one, other):
        log = await team.hub.log(channels["alice"].channel_id)
        assert [each.sequence for each in log] == list(range(1, 9))


async def test_times_are_iso_with_a_z_and_never_run_backwards(team: Team) -> None:
    channels = await team.discussion("bob")
    await team.clock.advance(60)
    await channels["alice"].set_context(a=1)
    team.clock._now = START
    await channels["alice"].set_context(a=2)
    times = [each.created_at for each in await team.hub.log(channels["alice"].channel_id)]
    assert times == sorted(times)
    assert times[-1] == "2026-01-01T00:01:00.000000Z"


# Built-in event types


@pytest.mark.parametrize(
    ("constant", "string"),
    [
        ("EV_TEXT", "ag2.msg.text"),
        ("EV_PACKET", "ag2.packet"),
        ("EV_CONTEXT_SET", "ag2.context.set"),
        ("EV_CHANNEL_INVITE", "ag2.channel.invite"),
        ("EV_CHANNEL_INVITE_ACK", "ag2.channel.invite.ack"),
        ("EV_CHANNEL_INVITE_REJECT", "ag2.channel.invite.reject"),
        ("EV_CHANNEL_OPENED", "ag2.channel.opened"),
        ("EV_CHANNEL_CLOSED", "ag2.channel.closed"),
        ("EV_CHANNEL_EXPIRED", "ag2.channel.expired"),
        ("EV_EXPECTATION_VIOLATED", "ag2.channel.expectation_violated"),
        ("EV_TASK_STARTED", "ag2.task.started"),
        ("EV_TASK_PROGRESS", "ag2.task.progress"),
        ("EV_TASK_COMPLETED", "ag2.task.completed"),
        ("EV_TASK_FAILED", "ag2.task.failed"),
        ("EV_TASK_EXPIRED", "ag2.task.expired"),
    ],
)
def test_the_constants_are_exported_with_their_strings(constant: str, string: str) -> None:
    assert getattr(antiphon, constant) == string
    assert constant in antiphon.__all__


async def test_text_carries_its_body_under_text(team: Team) -> None:
    channels = await team.discussion("bob")
    sent = await channels["alice"].send("a body")
    assert (sent.event_type, sent.event_data) == (EV_TEXT, {"text": "a body"})
    assert channels["alice"].state.turn_count == 1


async def test_a_packet_bundles_routing_context_and_body_in_one_envelope(team: Team) -> None:
    channels = await team.discussion("bob", context_vars={"old": 1})
    packet = {
        "routing": {"tool": "escalate"},
        "context_updates": {"set": {"new": 2}, "delete": ["old"]},
        "body": "over to you",
    }
    sent = await channels["alice"].post(EV_PACKET, packet)
    assert sent.event_data == packet
    state = channels["bob"].state
    assert (state.context_vars, state.turn_count, state.expected_next_speaker) == ({"new": 2}, 1, "bob")


@pytest.mark.parametrize(
    "event_type", [name for name in sorted(antiphon.__all__) if name.startswith(("EV_CHANNEL", "EV_TASK", "EV_EXP"))]
)
async def test_lifecycle_and_task_events_are_the_hubs_own(team: Team, event_type: str) -> None:
    channels = await team.discussion("bob")
    before = await team.hub.log(channels["alice"].channel_id)
    with pytest.raises(Denied) as caught:
        await channels["alice"].post(getattr(antiphon, event_type), {"reason": "because I say so"})
    assert caught.value.reason == "reserved_event"
    assert await team.hub.log(channels["alice"].channel_id) == before


# The lifecycle


async def test_the_hub_invites_each_target_and_opens_when_all_have_accepted(team: Team) -> None:
    channels = await team.discussion("bob", "carol")
    log = await team.hub.log(channels["alice"].channel_id)
    lifecycle = [each for each in log if each.event_type.startswith("ag2.channel.")]
    assert [(each.sender_id, each.event_type, each.audience) for each in lifecycle] == [
        ("hub", EV_CHANNEL_INVITE, ["bob"]),
        ("hub", EV_CHANNEL_INVITE, ["carol"]),
        ("bob", EV_CHANNEL_INVITE_ACK, None),
        ("carol", EV_CHANNEL_INVITE_ACK, None),
        ("hub", EV_CHANNEL_OPENED, None),
    ]


async def test_by_default_an_invitation_is_accepted(team: Team) -> None:
    channels = await team.discussion("bob", "carol", "dana")
    assert channels["alice"].state.status == "active"


async def test_somebody_may_reject_and_the_channel_closes_with_who_it_was(team: Team) -> None:
    await team.hub.register("choosy", accept=lambda invite: False)
    with pytest.raises(Denied, match="invite_rejected:choosy") as caught:
        await team.people["alice"].open(target="choosy")
    *_, rejected, closed = await team.hub.log(caught.value.channel_id)
    assert (rejected.sender_id, rejected.event_type) == ("choosy", EV_CHANNEL_INVITE_REJECT)
    assert (closed.sender_id, closed.event_data["reason"]) == ("hub", "invite_rejected:choosy")


async def test_however_a_channel_ends_the_hub_says_why(team: Team) -> None:
    by_hand, answered, expired, late = [
        await team.people["alice"].open(type=channel_type, target="bob", **options)  # type: ignore[arg-type]
        for channel_type, options in (
            ("conversation", {}),
            ("consulting", {}),
            ("conversation", {"ttl": 5}),
            ("discussion", {}),
        )
    ]
    await by_hand.close("we are done")
    await answered.send("how many?")
    await (await team.people["bob"].channel(answered.channel_id)).send("seven")
    await team.clock.advance(600)
    reasons = []
    for channel in (by_hand, answered, expired, late):
        last = (await team.hub.log(channel.channel_id))[-1]
        assert (last.sender_id, last.event_type) == ("hub", EV_CHANNEL_CLOSED)
        reasons.append(last.event_data["reason"])
    assert reasons == ["we are done", "answered", "expired", "expectation_violated:turn_within"]


async def test_the_end_of_a_life_span_is_recorded_as_expired_and_closed(team: Team) -> None:
    channel = await team.people["alice"].open(target="bob", ttl=60)
    await team.clock.advance(60)
    expired, closed = (await team.hub.log(channel.channel_id))[-2:]
    assert (expired.sender_id, expired.event_type) == ("hub", EV_CHANNEL_EXPIRED)
    assert (closed.event_type, closed.event_data["reason"]) == (EV_CHANNEL_CLOSED, "expired")
    assert channel.state.status == "expired"


@pytest.mark.parametrize(("handler", "told"), [("warn", True), ("audit", False), ("auto_close", False)])
async def test_a_missed_expectation_is_told_to_everybody_only_if_so_wished(
    team: Team, handler: str, told: bool
) -> None:
    wish = [{"name": "max_silence", "seconds": 60, "handler": handler}]
    channel = await team.people["alice"].open(target="bob", knobs={"expectations": wish})
    await team.clock.advance(60)
    seen = [each.event_type for each in await inbox_of(team.people["bob"])]
    assert (EV_EXPECTATION_VIOLATED in seen) is told
    assert (channel.state.status == "closed") is (handler == "auto_close")


# Audience and visibility


async def test_no_audience_is_everybody_in_the_channel(team: Team) -> None:
    channels = await team.discussion("bob", "carol", "dana")
    sent = await channels["alice"].send("to all")
    assert sent.audience is None
    for name in ("bob", "carol", "dana"):
        assert sent in await inbox_of(team.people[name])


async def test_an_audience_is_those_named_and_the_sender(team: Team) -> None:
    channels = await team.discussion("bob", "carol", "dana")
    sent = await channels["alice"].send("to two", audience=["bob", "dana"])
    seen = {name: sent in await inbox_of(team.people[name]) for name in ("bob", "carol", "dana")}
    assert seen == {"bob": True, "carol": False, "dana": True}
    assert {name: visible_to(sent, name) for name in channels} == {
        "alice": True,
        "bob": True,
        "carol": False,
        "dana": True,
    }


async def test_a_subscriber_sees_what_it_may(team: Team) -> None:
    channels = await team.discussion("bob", "carol")
    secret = await channels["alice"].send("psst", audience=["bob"])
    await channels["alice"].close()
    seen = {
        name: [each async for each in team.hub.subscribe(secret.channel_id, participant=name)]
        for name in ("alice", "bob", "carol")
    }
    assert {name: secret in found for name, found in seen.items()} == {"alice": True, "bob": True, "carol": False}


@pytest.mark.parametrize(
    "view", [FullTranscript(), WindowedSummary(10), NamedTranscript(), NamedWindowedSummary(10)], ids=repr
)
async def test_views_honour_the_audience(
    team: Team, view: FullTranscript | WindowedSummary | NamedTranscript | NamedWindowedSummary
) -> None:
    channels = await team.discussion("bob", "carol")
    await channels["alice"].send("only for bob", audience=["bob"])
    await channels["bob"].send("for all")
    log = await team.hub.log(channels["alice"].channel_id)
    texts = {name: " ".join(message.text for message in view.project(log, name)) for name in channels}
    assert {name: "only for bob" in text for name, text in texts.items()} == {
        "alice": True,
        "bob": True,
        "carol": False,
    }
    assert all("for all" in text for text in texts.values())


async def test_the_operator_sees_everything(team: Team) -> None:
    channels = await team.discussion("bob", "carol")
    sent = await channels["alice"].send("psst", audience=["bob"])
    assert sent in await team.hub.log(sent.channel_id)


# Priority


def test_there_are_three_priorities_in_order() -> None:
    assert [priority.name for priority in Priority] == ["BACKGROUND", "NORMAL", "URGENT"]
    assert Priority.BACKGROUND < Priority.NORMAL < Priority.URGENT


async def test_priority_is_normal_unless_said_otherwise_and_is_recorded(team: Team) -> None:
    channels = await team.discussion("bob")
    assert (await channels["alice"].send("as usual")).priority is Priority.NORMAL
    assert (await channels["bob"].send("quick", priority=Priority.URGENT)).priority is Priority.URGENT
    log = await team.hub.log(channels["alice"].channel_id)
    assert [each.priority for each in log if each.event_type == EV_TEXT] == [Priority.NORMAL, Priority.URGENT]


async def test_priority_never_reorders_a_log(team: Team) -> None:
    channel = await team.people["alice"].open(target="bob")
    priorities = [Priority.BACKGROUND, Priority.URGENT, Priority.NORMAL, Priority.URGENT]
    sent = [await channel.send(str(number), priority=each) for number, each in enumerate(priorities)]
    assert (await team.hub.log(channel.channel_id))[-4:] == sent


# Raw envelopes and custom types


@pytest.mark.parametrize("event_type", ["myapp.review_request", "com.example.deep.name", "x-y.z_1"])
async def test_custom_types_pass_through_unmodified(team: Team, event_type: str) -> None:
    channels = await team.discussion("bob", "carol")
    data = {"id": 7, "nested": {"list": [1, "two", None, True, 2.5]}}
    sent = await channels["bob"].post(event_type, data)
    assert (sent.event_type, sent.event_data) == (event_type, data)
    assert (await team.hub.log(sent.channel_id))[-1] == sent
    assert sent in await inbox_of(team.people["carol"])


async def test_custom_types_do_not_advance_the_turn(team: Team) -> None:
    channels = await team.discussion("bob")
    before = channels["alice"].state
    for name in ("alice", "bob", "alice"):
        await channels[name].post("myapp.thing", {"text": "looks like text", "set": {"a": 1}})
    after = channels["alice"].state
    assert (after.turn_count, after.speakers, after.last_speaker_id) == (0, ("alice",), None)
    assert after.context_vars == before.context_vars
    assert after.sequence == before.sequence + 3


async def test_a_custom_type_needs_a_namespace(team: Team) -> None:
    channels = await team.discussion("bob")
    with pytest.raises(Denied, match=r"'review'.*dotted name"):
        await channels["alice"].post("review", {})


async def test_event_data_must_be_json(team: Team) -> None:
    channels = await team.discussion("bob")
    for bad in ({"at": object()}, {"at": {1, 2}}, {"at": float("nan")}, {7: "at"}):
        with pytest.raises(Denied):
            await channels["alice"].post("myapp.thing", bad)  # type: ignore[arg-type]


async def test_a_hand_built_envelope_is_posted_as_its_sender(team: Team) -> None:
    channels = await team.discussion("bob")
    channel_id = channels["alice"].channel_id
    text = {"event_type": EV_TEXT, "event_data": {"text": "by hand"}, "channel_id": channel_id}
    sent = await team.hub.post(Envelope(sender_id="alice", **text))  # type: ignore[arg-type]
    assert channels["alice"].state.last_envelope_id == sent.envelope_id
    assert channels["alice"].state.expected_next_speaker == "bob"
    for sender in ("hub", "mallory", "dana"):
        with pytest.raises(Denied, match="not_a_participant"):
            await team.hub.post(Envelope(sender_id=sender, **text))  # type: ignore[arg-type]


# Causation


async def test_a_reply_names_what_it_answers(team: Team) -> None:
    channels = await team.discussion("bob")
    question = await channels["alice"].send("why?")
    answer = await channels["bob"].send("because", causation_id=question.envelope_id)
    assert answer.causation_id == question.envelope_id
    assert question.causation_id is None
    assert (await team.hub.log(answer.channel_id))[answer.sequence - 1] == answer


async def test_everything_the_hub_says_has_a_cause(team: Team) -> None:
    channels = await team.discussion("bob")
    await channels["alice"].send("hello")
    log = await team.hub.log(channels["alice"].channel_id)
    known = {each.envelope_id for each in log}
    unprompted = {"antiphon.channel.created", EV_CHANNEL_INVITE}
    for each in log:
        if each.sender_id == "hub" and each.event_type not in unprompted:
            assert each.causation_id in known


# The log


async def test_the_log_is_in_order_of_admission_and_can_be_read_from_anywhere(team: Team) -> None:
    channels = await team.discussion("bob")
    sent = [await channels[name].send(f"{name} speaks") for name in ("alice", "bob", "alice", "bob")]
    log = await team.hub.log(channels["alice"].channel_id)
    assert [each for each in log if each.event_type == EV_TEXT] == sent
    assert await team.hub.log(channels["alice"].channel_id, after=6) == log[6:]


async def test_opening_the_store_again_folds_the_log_to_the_same_state(tmp_path: Path) -> None:
    clock, url = ManualClock(), f"sqlite:///{tmp_path / 'team.db'}"
    async with Hub.open(url, clock=clock) as hub:
        alice, bob = await hub.register("alice"), await hub.register("bob")
        channel = await alice.open(type="discussion", target="bob", context_vars={"a": 1})
        await channel.send("hello")
        await (await bob.channel(channel.channel_id)).set_context(b=[2])
        await channel.post("myapp.thing", {"x": 1}, audience=["bob"])
        state, log = channel.state, await hub.log(channel.channel_id)
    async with Hub.open(url, clock=clock) as hub:
        again = await (await hub.register("alice")).channel(channel.channel_id)
        assert again.state == state
        assert await hub.log(channel.channel_id) == log
        await hub.hydrate()
        assert again.state == state
        assert await hub.log(channel.channel_id) == log
        with pytest.raises(Denied, match="not_expected_speaker"):
            await again.send("out of turn, as before")
