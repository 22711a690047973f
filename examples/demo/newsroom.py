"""The process that holds the hub in the demonstration, and that is killed: `python newsroom.py ACT URL`.

Rule 1: it goes on only when cued, by a line on standard input; at the end of that input it stops. The bank's answers
        come there too, in a word of their own.
Rule 2: a beat is written once the hub has acknowledged what it tells of, in one piece, so that a kill tears none.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count

import beats
import msgspec
import story
from beats import BOOKED, GO_ON, Beat
from clerk import Clerk, Outside, recalled

from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, Denied
from antiphon.core.events import EV_TEXT
from antiphon.runtime.channel import Channel
from antiphon.runtime.hub import Hub
from antiphon.runtime.participant import Participant

SENDERS = 8
"""How many items of the wire are on their way at a time; the store writes them in one commit."""
MOST_ITEMS = 20_000
AGAIN = 40
"""How many items the wire sends a second time, because it cannot know which of them arrived."""
PATIENCE = 10.0
"""How many seconds a channel is given to end."""

Team = dict[str, Participant]


async def begin(hub: Hub) -> None:
    """The first act, which does not end by itself."""
    team, clerk = await _gathered(hub), Clerk(Outside(_tell, _cue, _confirmed))
    await hub.register(clerk.agent())
    desk = await _opened(team[story.EDITOR], "discussion", [story.REPORTER, story.CHECKER])
    for line in story.BEFORE:
        await _cue()
        await _speak(team, desk.channel_id, line)
    await _cue()
    phone = await _opened(team[story.CHECKER], "consulting", [story.KEEPER])
    await _speak(team, phone.channel_id, story.QUESTION)
    await _cue()
    errand = await _opened(team[story.EDITOR], "consulting", [story.CLERK])
    await _speak(team, errand.channel_id, story.ERRAND)
    clerk.asked.set()
    await clerk.paying.wait()
    await _cue()
    wire = await _opened(team[story.WIRE], "conversation", [story.EDITOR])
    numbers = count(1)
    await asyncio.gather(*(_pour(wire, numbers) for _ in range(SENDERS)))


async def resume(hub: Hub) -> None:
    """The second act, by another process: everything goes on from the file."""
    team = await _gathered(hub)
    desk = await _found(hub, team[story.EDITOR], story.REPORTER)
    phone = await _found(hub, team[story.KEEPER], story.KEEPER)
    errand = await _found(hub, team[story.EDITOR], story.CLERK)
    wire = await _found(hub, team[story.WIRE], story.WIRE)
    await _cue()
    await _finish_turn(hub, errand)
    await _cue()
    await _speak_out_of_turn(team, desk.channel_id)
    await _cue()
    await _repeat(wire, hub)
    await _cue()
    question = await _taken_from_inbox(team[story.KEEPER])
    await _cue()
    await _speak(team, phone.channel_id, story.ANSWER, answering=question)
    _tell(beats.Closed(phone.channel_id, await phone.closed(timeout=PATIENCE)))
    for line in story.AFTER:
        await _cue()
        await _speak(team, desk.channel_id, line)
    _tell(beats.Closed(desk.channel_id, await desk.close(story.REASON)))


async def _gathered(hub: Hub) -> Team:
    return {name: await hub.register(name) for name in story.PEOPLE}


async def _opened(host: Participant, kind: str, guests: list[str]) -> Channel:
    channel = await host.open(type=kind, target=guests)
    _tell(beats.Opened(channel.channel_id, kind, channel.state.participant_order))
    return channel


async def _speak(team: Team, channel_id: str, line: story.Line, *, answering: str | None = None) -> None:
    channel = await team[line.speaker].channel(channel_id)
    said = await channel.send(line.text, causation_id=answering)
    _tell(beats.Said(channel_id, said.sequence, said.envelope_id, line.speaker, line.text))


async def _finish_turn(hub: Hub, errand: Channel) -> None:
    """Tell the journal of the clerk's turn, and register her: then it goes on by itself."""
    for call in recalled(await hub.log(errand.channel_id)):
        _tell(call)
    clerk = Clerk(Outside(_tell, _cue, _confirmed))
    clerk.asked.set()
    await hub.register(clerk.agent())
    reason = await errand.closed(timeout=PATIENCE)
    for said in await hub.log(errand.channel_id):
        if said.event_type == EV_TEXT and said.sender_id == story.CLERK:
            _tell(
                beats.Said(said.channel_id, said.sequence, said.envelope_id, story.CLERK, str(said.event_data["text"]))
            )
    _tell(beats.Closed(errand.channel_id, reason))


async def _speak_out_of_turn(team: Team, channel_id: str) -> None:
    line = story.OUT_OF_TURN
    try:
        await _speak(team, channel_id, line)
    except Denied as denied:
        _tell(beats.Refused(channel_id, line.speaker, line.text, denied.reason, denied.detail))


async def _pour(wire: Channel, numbers: count[int]) -> None:
    while (number := next(numbers)) <= MOST_ITEMS:
        sent = await _send_item(wire, number)
        _tell(beats.Wired(wire.channel_id, sent.sequence, sent.envelope_id, number))


async def _send_item(wire: Channel, number: int) -> Envelope:
    data: dict[str, object] = {"item": number, "text": story.wire_item(number)}
    return await wire.post(story.WIRE_EVENT, data, message_id=story.wire_id(number))


async def _repeat(wire: Channel, hub: Hub) -> None:
    known = await _items(wire, hub)
    first = max(1, len(known) + SENDERS + 1 - AGAIN)
    for number in range(first, first + AGAIN):
        await _send_item(wire, number)
    now = await _items(wire, hub)
    _tell(beats.Repeated(wire.channel_id, AGAIN, added=len(now) - len(known), doubled=len(now) - len(set(now))))


async def _items(wire: Channel, hub: Hub) -> list[str]:
    log = await hub.log(wire.channel_id)
    return [str(envelope.event_data["item"]) for envelope in log if envelope.event_type == story.WIRE_EVENT]


async def _taken_from_inbox(keeper: Participant) -> str:
    """The question that waits for the keeper; what comes before it in the inbox is the invitation."""
    async for envelope in keeper.inbox():
        text = envelope.event_data.get("text")
        if isinstance(text, str):
            _tell(beats.Delivered(envelope.channel_id, keeper.name, envelope.sequence, text))
            return envelope.envelope_id
    raise AssertionError("an inbox has no end")


async def _found(hub: Hub, holder: Participant, guest: str) -> Channel:
    """The only channel of a participant, as `holder` holds it."""
    [row] = await hub.channels(participant=guest)
    channel = await holder.channel(row.channel_id)
    state = channel.state
    _tell(beats.Found(channel.channel_id, state.type, state.status, state.turn_count, state.expected_next_speaker))
    return channel


def _tell(beat: Beat) -> None:
    os.write(sys.stdout.fileno(), msgspec.json.encode(beat) + b"\n")


async def _cue() -> None:
    _tell(beats.Waits())
    await _heard(GO_ON)


async def _confirmed() -> str:
    await _heard(BOOKED)
    return BOOKED


_reading, _kept = asyncio.Lock(), list[str]()


async def _heard(word: str) -> None:
    """Wait for a line that says this. Other lines are kept."""
    while word not in _kept:
        async with _reading:
            if word not in _kept:
                _kept.append(await _line())
    _kept.remove(word)


async def _line() -> str:
    line: str = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        sys.exit("the watching process has ended")
    return line.rstrip("\n")


async def _perform(act: str, url: str) -> None:
    async with Hub.open(url) as hub:
        _tell(beats.Began(os.getpid(), act))
        await {"begin": begin, "resume": resume}[act](hub)


if __name__ == "__main__":
    try:
        asyncio.run(_perform(sys.argv[1], sys.argv[2]))
    except AntiphonError as error:
        sys.exit(f"Error: {error}")
