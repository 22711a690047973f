"""A log is all there is: folded again, in one go or in two, by this hub or the next, it gives the same state."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from antiphon import Envelope
from antiphon.core.codec import decode_envelope, encode_envelope, from_json, to_json
from antiphon.core.ruleset import SavedFold, restore_fold
from antiphon.core.state import State
from antiphon.hub import channel_log
from antiphon.testing import ManualClock
from tests.laws.script_player import Player, run
from tests.laws.script_strategies import Act, Open, envelopes, names, scripts
from tests.support.hub_places import InMemory
from tests.support.inspection import fold_of, folded, laws_of
from tests.support.json_strategies import json_objects


async def logs_of(player: Player) -> list[list[Envelope]]:
    return [await player.hub.log(channel_id) for channel_id in player.channel_ids]


async def assert_replays(player: Player) -> None:
    for channel_id in player.channel_ids:
        log = await player.hub.log(channel_id)
        assert [envelope.sequence for envelope in log] == list(range(1, len(log) + 1))
        assert sorted({envelope.created_at for envelope in log}) == list(
            dict.fromkeys(envelope.created_at for envelope in log)
        )
        assert folded(log) == await fold_of(player.hub, channel_id)


async def played(script: list[Act]) -> Player:
    clock = ManualClock()
    player = Player(InMemory(clock), clock)
    await player.open_hub()
    await player.play(script)
    return player


@given(scripts)
def test_the_live_state_is_the_fold_of_the_log(script: list[Act]) -> None:
    async def check() -> None:
        player = await played(script)
        await assert_replays(player)
        await player.close_hub()

    run(check())


@given(scripts, scripts)
def test_a_hub_that_is_opened_again_goes_on_from_the_same_fold(first: list[Act], then: list[Act]) -> None:
    async def check() -> None:
        player = await played(first)
        before = [await fold_of(player.hub, channel_id) for channel_id in player.channel_ids]
        await player.reopen()
        await player.hub.hydrate()
        assert [await fold_of(player.hub, channel_id) for channel_id in player.channel_ids] == before
        await player.play(then)
        await assert_replays(player)
        await player.close_hub()

    run(check())


@given(scripts, scripts, st.integers(1, 4))
def test_snapshots_change_nothing(first: list[Act], then: list[Act], every: int) -> None:
    async def check(drop: bool) -> list[str]:
        player = await played(first)
        store = player.place.store
        taken = [await store.get_snapshot(channel_id) for channel_id in player.channel_ids]
        assert any(taken), "a log longer than the distance between snapshots has one"
        for log in store._channels.values():
            log.snapshot = None if drop else log.snapshot
        await player.reopen()
        await player.play(then)
        await assert_replays(player)
        await player.close_hub()
        return player.refusals

    distance, channel_log.ENVELOPES_PER_SNAPSHOT = channel_log.ENVELOPES_PER_SNAPSHOT, every
    try:
        assert run(check(drop=True)) == run(check(drop=False))
    finally:
        channel_log.ENVELOPES_PER_SNAPSHOT = distance


@given(scripts, st.data())
def test_a_prefix_and_the_rest_are_the_whole(script: list[Act], data: st.DataObject) -> None:
    async def check() -> list[list[Envelope]]:
        player = await played(script)
        logs = await logs_of(player)
        await player.close_hub()
        return logs

    for log in run(check()):
        ruleset, cut = laws_of(log), data.draw(st.integers(0, len(log)))
        half = ruleset.fold_all(ruleset.begin(log[0].channel_id), log[:cut])
        assert ruleset.fold_all(half, log[cut:]) == folded(log)
        saved = restore_fold(ruleset, from_json(to_json(half), SavedFold))
        assert saved == half
        assert ruleset.fold_all(saved, log[cut:]) == folded(log)


def unnumbered(state: State) -> State:
    """The state without its numbers. A turn is called by the place of its assignment."""
    owed = tuple(changed(turn, turn_id=turn.speaker, sequence=0) for turn in state.owed)
    return changed(state, sequence=0, active_at="", updated_at="", owed=owed)


@given(scripts, st.data(), names, json_objects)
def test_custom_events_are_silent(script: list[Act], data: st.DataObject, who: str, said: dict[str, object]) -> None:
    """Wherever one stands in a log, everything after it is as if it were not there, but for the numbers."""

    async def check() -> list[list[Envelope]]:
        player = await played(script)
        logs = await logs_of(player)
        await player.close_hub()
        return logs

    for log in run(check()):
        place = data.draw(st.integers(1, len(log)))
        before = log[place - 1]
        custom = replace(
            before, envelope_id="custom", sender_id=who, event_type="myapp.noted", event_data=said, sequence=place + 1
        )
        moved = [replace(envelope, sequence=envelope.sequence + 1) for envelope in log[place:]]
        plain, noted = folded(log), folded([*log[:place], custom, *moved])
        assert noted.memories == plain.memories
        assert noted.state.sequence == plain.state.sequence + 1
        assert unnumbered(noted.state) == unnumbered(plain.state)


@given(scripts)
def test_what_is_recorded_is_what_is_read(script: list[Act]) -> None:
    async def check() -> None:
        player = await played(script)
        for log in await logs_of(player):
            assert [decode_envelope(encode_envelope(envelope)) for envelope in log] == log
        await player.close_hub()

    run(check())


@given(st.lists(envelopes(), max_size=8), st.integers(0, 8))
def test_even_a_log_of_nonsense_folds_the_same_in_two_parts(log: list[Envelope], cut: int) -> None:
    ruleset = laws_of([opening_of()])
    whole = ruleset.fold_all(ruleset.begin("here"), log)
    half = ruleset.fold_all(ruleset.begin("here"), log[:cut])
    assert ruleset.fold_all(half, log[cut:]) == whole
    assert restore_fold(ruleset, from_json(to_json(whole), SavedFold)) == whole


def opening_of() -> Envelope:
    seats = [{"name": "alice", "kind": "service"}, {"name": "bob", "kind": "service"}]
    data = {"type": "discussion", "creator": "alice", "participants": seats}
    return Envelope(channel_id="here", event_type="antiphon.channel.created", event_data=data)


def test_scripts_reach_what_they_should() -> None:
    """The search is worth nothing if every script ends at once."""

    async def check() -> None:
        player = await played([Open("discussion", "alice", ("bob",), 60.0)])
        assert len((await logs_of(player))[0]) == 5
        await player.close_hub()

    run(check())
