"""What is said to some reaches nobody else, whatever way they look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from antiphon import (
    EV_PACKET,
    Channel,
    Envelope,
    FullTranscript,
    NamedTranscript,
    NamedWindowedSummary,
    WindowedSummary,
    visible_to,
)
from tests.laws.script_player import run
from tests.support.hub_team import Team, team
from tests.support.waiting import let_others_run

PEOPLE = ("alice", "bob", "carol", "dave")
VIEWS = (FullTranscript(), NamedTranscript(), WindowedSummary(2), NamedWindowedSummary(2), WindowedSummary(50))


@dataclass(frozen=True)
class Secret:
    marker: str
    kind: str
    to: tuple[str, ...] | None


secrets = st.lists(
    st.builds(
        Secret,
        st.uuids().map(lambda each: each.hex),
        st.sampled_from(["text", "packet", "custom"]),
        st.none() | st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=3, unique=True).map(tuple),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda secret: secret.marker,
)


async def told(channel: Channel, secret: Secret) -> Envelope:
    audience = None if secret.to is None else list(secret.to)
    if secret.kind == "text":
        return await channel.send(f"this is {secret.marker}", audience=audience)
    if secret.kind == "packet":
        return await channel.post(EV_PACKET, {"body": secret.marker, "routing": {}}, audience=audience)
    return await channel.post("myapp.secret", {"deep": [{"it": secret.marker}]}, audience=audience)


async def everything_seen(here: Team, channel: Channel, name: str, live: list[Envelope]) -> str:
    """Every word that reaches one reader: live and later, by subscription, inbox, views and state."""
    reader = here[name]
    log = await here.log(channel)
    seen: list[object] = [live, (await reader.channel(channel.channel_id)).state]
    unread = await reader.pending()
    inbox = reader.inbox()
    delivered = [await anext(inbox) for _ in range(unread)]
    await closed(inbox)
    seen.append(delivered)
    later = hub_reads(here, channel, name)
    seen.append([envelope async for envelope in later])
    for view in VIEWS:
        seen.append(view.project(log, name))
    expected = [each for each in log if visible_to(each, name) and each.sender_id != name]
    assert [each for each in delivered if each.channel_id == channel.channel_id] == expected
    return repr(seen)


async def closed(reading: AsyncIterator[Envelope]) -> None:
    await reading.aclose()  # type: ignore[attr-defined]  # an async generator


async def hub_reads(here: Team, channel: Channel, name: str) -> AsyncIterator[Envelope]:
    last = channel.state.sequence
    async for envelope in here.hub.subscribe(channel.channel_id, participant=name):
        yield envelope
        if envelope.sequence == last:
            return


@given(secrets)
def test_a_secret_stays_with_those_it_was_told_to(secrets: list[Secret]) -> None:
    async def check() -> None:
        async with team(*PEOPLE, "eve") as here:
            channel = await here["alice"].open(type="discussion", target=list(PEOPLE[1:]))
            live: dict[str, list[Envelope]] = {name: [] for name in PEOPLE}
            listening = [asyncio.ensure_future(listen(here, channel, name, live[name])) for name in PEOPLE]
            await let_others_run()
            senders: dict[str, str] = {}
            for secret in secrets:
                speaker = channel.state.expected_next_speaker or "alice"
                senders[secret.marker] = speaker
                await told(await here.held_by(speaker, channel), secret)
            await channel.close()
            await asyncio.gather(*listening)
            for name in PEOPLE:
                seen = await everything_seen(here, channel, name, live[name])
                for secret in secrets:
                    may = secret.to is None or name in secret.to or senders[secret.marker] == name
                    assert (secret.marker in seen) == may
            assert await here["eve"].pending() == 0

    run(check())


async def listen(here: Team, channel: Channel, name: str, heard: list[Envelope]) -> None:
    async for envelope in here.hub.subscribe(channel.channel_id, participant=name):
        heard.append(envelope)


@given(st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=2, unique=True), st.lists(st.sampled_from(PEOPLE)))
def test_changing_a_list_of_names_afterwards_changes_no_audience(names: list[str], later: list[str]) -> None:
    async def check() -> None:
        async with team(*PEOPLE) as here:
            channel = await here["alice"].open(type="discussion", target=list(PEOPLE[1:]))
            live: dict[str, list[Envelope]] = {name: [] for name in PEOPLE}
            listening = [asyncio.ensure_future(listen(here, channel, name, live[name])) for name in PEOPLE]
            await let_others_run()
            audience = list(names)
            await channel.send("between us", audience=audience)
            audience[:] = later
            await channel.close()
            await asyncio.gather(*listening)
            for name in PEOPLE:
                assert ("between us" in repr(live[name])) == (name in {"alice", *names})

    run(check())


@given(st.lists(st.sampled_from([*PEOPLE, "eve", "hub:operators"]), max_size=3), st.sampled_from(PEOPLE))
def test_visible_means_named_or_everybody_or_mine(audience: list[str], sender: str) -> None:
    for given_to in (None, audience):
        envelope = Envelope("id", "here", sender, given_to, "myapp.thing", {})
        for name in (*PEOPLE, "eve"):
            assert visible_to(envelope, name) == (given_to is None or name in given_to or name == sender)
