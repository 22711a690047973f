"""One script, two stores: the logs are equal, but for the ids."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given

from antiphon import Envelope
from antiphon.testing import ManualClock
from tests.laws.script_player import Player, run, without_ids
from tests.laws.script_strategies import COSTLY, KINDS, Act, Open, Pass, Say, scripts
from tests.support.hub_places import InMemory, OnDisk, Place
from tests.support.inspection import fold_of, folded

Told = tuple[list[list[Envelope]], list[str], dict[str, int], list[tuple[str, str, str]]]


async def told(place: Place, clock: ManualClock, script: list[Act]) -> Told:
    """What a script leaves behind: logs, refusals, what everybody has not read yet, and the listing."""
    player = Player(place, clock)
    await player.open_hub()
    await player.play(script)
    await player.reopen()
    logs = [await player.hub.log(channel_id) for channel_id in player.channel_ids]
    for channel_id, log in zip(player.channel_ids, logs, strict=True):
        assert folded(log) == await fold_of(player.hub, channel_id)
    unread = {name: await player.here[name].pending() for name in KINDS}
    rows = {row.channel_id: row for row in await player.hub.channels()}
    listing = [(rows[each].type, rows[each].status, rows[each].close_reason) for each in player.channel_ids]
    await player.close_hub()
    return without_ids(logs), player.refusals, unread, listing


ASKED = [Open("consulting", "alice", ("bob",), None), Say(0, "alice", "well?"), Pass(200.0)]


@COSTLY
@given(scripts)
@example(ASKED)
def test_memory_and_sqlite_record_the_same(script: list[Act]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock, other = ManualClock(), ManualClock()
        assert run(told(InMemory(clock), clock, script)) == run(told(OnDisk(Path(folder)), other, script))
