"""The states of a breaker: its whole table against a golden file, all that can happen, and each counter."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.core.envelope import add_seconds, seconds_between
from antiphon.guards.breaker_machine import (
    CLOSED,
    NEUTRAL,
    Breaker,
    BreakerEvent,
    BreakerLimits,
    Called,
    Ended,
    LeaseOver,
    Opened,
    Overspent,
    ProbeLost,
    Repeated,
    cooldown_seconds,
    refuses,
)
from tests.guards.breaker_play import BEGAN, LIMITS, Scene, play

GOLDEN = Path(__file__).parent / "golden" / "breaker_table.json"
STATES = 100_000 if os.environ.get("ANTIPHON_PROOF") == "1" else 10_000
HOUR_AGO = add_seconds(BEGAN, -3600)
JUST_NOW = add_seconds(BEGAN, -1)

OPEN = Breaker("open", 3, JUST_NOW, add_seconds(BEGAN, 20), (JUST_NOW,), reason="transport")
DUE = replace(OPEN, retry_at=BEGAN)
TRYING = Breaker("half_open", 3, JUST_NOW, BEGAN, (JUST_NOW,), "probe", add_seconds(BEGAN, 60), "transport")
SITUATIONS: dict[str, Breaker] = {
    "closed": Breaker("closed", 3),
    "closed, 1 schema": Breaker("closed", 3, counts={"schema": 1}),
    "closed, 2 streak": Breaker("closed", 3, counts={"streak": 2}),
    "closed, 2 invariant": Breaker("closed", 3, counts={"invariant": 2}),
    "closed, 4 transport": Breaker("closed", 3, counts={"transport": 4}),
    "closed, all but one of each": Breaker(
        "closed", 3, counts={"schema": 1, "streak": 2, "invariant": 2, "transport": 4}
    ),
    "closed, 4 trips": Breaker("closed", 3, trips=(JUST_NOW,) * 4, counts={"schema": 1}),
    "closed, trips of an hour ago": Breaker("closed", 3, trips=(HOUR_AGO,) * 5, counts={"schema": 1}),
    "open": OPEN,
    "open, due": DUE,
    "open, 5 trips": replace(OPEN, trips=(JUST_NOW,) * 5),
    "open, 6 trips": replace(OPEN, trips=(JUST_NOW,) * 6),
    "half_open": TRYING,
    "half_open, 5 trips": replace(TRYING, trips=(JUST_NOW,) * 5),
    "stopped": Breaker("stopped", 3, JUST_NOW, trips=(JUST_NOW,) * 6),
}
EVENTS: dict[str, BreakerEvent] = {
    "a call": Called("other"),
    "a call that a person has approved": Called("other", approved=True),
    "the probe again": Called("probe"),
    **{
        f"the probe ends: {failure or 'ok'}": Ended("probe", 3, failure)
        for failure in ("", "transport", "schema", NEUTRAL)
    },
    **{
        f"another call ends: {failure or 'ok'}": Ended("other", 3, failure)
        for failure in ("", "transport", "schema", "invariant", NEUTRAL)
    },
    **{
        f"a call of an earlier epoch ends: {failure or 'ok'}": Ended("late", 2, failure)
        for failure in ("", "transport", "schema")
    },
    "a third identical call": Repeated(3),
    "too much was spent": Overspent(11, 10),
    "the process of the probe died": ProbeLost(),
    "the lease ends": LeaseOver(),
    "it has opened": Opened(),
}


def table() -> dict[str, dict[str, str]]:
    """What follows in each situation from each event."""
    return {
        name: {what: words(breaker, event) for what, event in EVENTS.items()} for name, breaker in SITUATIONS.items()
    }


def words(breaker: Breaker, event: BreakerEvent) -> str:
    refused = "refused; " if isinstance(event, Called) and refuses(breaker, event, BEGAN) else ""
    after, changes = play(breaker, event, BEGAN)
    steps = "".join(f" → {change.target} ({change.reason})" for change in changes)
    if not steps:
        return f"{refused}{after.status} {dict(after.counts) or ''}".strip()
    cooling = f", {round(seconds_between(BEGAN, after.retry_at))} s" if after.status == "open" else ""
    return f"{refused}{breaker.status}{steps}, epoch {after.epoch}, trips {len(after.trips)}{cooling}"


def test_the_whole_table_is_as_it_was_decided() -> None:
    assert table() == json.loads(GOLDEN.read_text())


def test_whatever_happens_one_call_tries_and_no_breaker_is_stuck() -> None:
    """Every scene that can be reached, breadth first: the rules hold in it, and a success closes it in the end."""
    first = Scene(CLOSED)
    seen, waiting, deepest = {first.key}, deque([(first, 0)]), 0
    visited: set[str] = set()
    while waiting and len(seen) < STATES:
        scene, depth = waiting.popleft()
        for what, after in scene.next_scenes():
            check_step(scene, what, after)
            visited.add(after.breaker.status)
            if after.key not in seen:
                seen.add(after.key)
                deepest = max(deepest, depth + 1)
                waiting.append((after, depth + 1))
        check_way_out(scene)
    assert len(seen) >= STATES
    assert visited == {"closed", "open", "half_open", "stopped"}
    assert deepest >= 12


def check_step(before: Scene, what: str, after: Scene) -> None:
    was, now = before.breaker, after.breaker
    assert now.epoch >= was.epoch, what
    assert bool(now.probe) == (now.status == "half_open"), what
    if was.status == "open" and now.status == "half_open":
        assert before.at >= was.retry_at or what == "approved left", what
    if was.status == "stopped" and now.status != "stopped":
        assert (what, now.status) == ("approved left", "half_open")
    if was.status != "closed" and now.status == "closed":
        assert (was.status, what) == ("half_open", "ended ")
        assert (now.counts, now.window) == ({}, ())
    if now.status == "open" and was.status != "open":
        assert len(now.trips) <= 2
        assert now.retry_at == after.at or 27 <= seconds_between(after.at, now.retry_at) <= 300


def check_way_out(scene: Scene) -> None:
    """Left alone, a breaker lets a call try, and closes with its success. A stopped one waits for a person."""
    breaker, at = scene.breaker, scene.at
    for _ in range(4):
        if breaker.status == "half_open":
            at = max(at, breaker.lease)
            breaker, _ = play(breaker, LeaseOver(), at)
        if breaker.status in ("closed", "stopped"):
            break
        at = max(at, breaker.retry_at)
        probe = Called("probe")
        assert not refuses(breaker, probe, at)
        breaker, _ = play(breaker, probe, at)
        assert (breaker.status, breaker.probe) == ("half_open", "probe")
        breaker, _ = play(breaker, Ended("probe", breaker.epoch), at)
    assert breaker.status in ("closed", "stopped")


def ended(*failures: str, breaker: Breaker = CLOSED, at: str = BEGAN) -> Breaker:
    """The breaker after calls that have ended like this, one a second."""
    for number, failure in enumerate(failures):
        breaker, _ = play(breaker, Ended(f"c{number}", breaker.epoch, failure), add_seconds(at, number))
    return breaker


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        (["transport"] * 4, ""),
        (["transport"] * 5, "transport"),
        (["transport"] * 4 + [""] + ["transport"] * 4, ""),
        (["schema"], ""),
        (["schema", "schema"], "schema"),
        (["schema", "", "schema"], ""),
        (["invariant", "invariant"], ""),
        (["invariant", "", "invariant", "", "invariant"], "invariant"),
        (["transport"] * 4 + [NEUTRAL], ""),
        (["transport"] * 4 + [NEUTRAL, "transport"], "transport"),
    ],
)
def test_each_class_of_failure_has_its_own_counter(failures: list[str], reason: str) -> None:
    # So few calls that their share does not count.
    assert ended(*failures).reason == reason


def test_an_answer_without_the_wanted_form_is_no_transport_error_and_hides_none() -> None:
    """Failures of the form count on while calls arrive, and those of the transport begin anew when one arrives."""
    assert ended("transport", "transport", "schema").counts == {"schema": 1}
    assert ended("schema", "transport").counts == {"schema": 1, "transport": 1}
    assert ended("schema", "transport", "schema").reason == "schema"


def test_half_of_ten_calls_within_a_minute_open_it() -> None:
    half = ["transport", ""] * 4 + ["", "transport"]
    assert ended(*half).reason == "transport_share"
    assert ended(*half[:-1]).status == "closed"
    assert ended(*half, "").reason == "transport_share"
    fewer = ["", *half]
    assert ended(*fewer).status == "closed"
    early = ended(*half[:-1])
    late, _ = play(early, Ended("late", 0, "transport"), add_seconds(BEGAN, 69))
    assert late.status == "closed"


def test_the_cooldown_doubles_up_to_five_minutes_and_is_drawn_once() -> None:
    seconds = [cooldown_seconds(trips, LIMITS, "seed") for trips in range(1, 8)]
    for trips, cooldown in enumerate(seconds, 1):
        assert min(30 * 2 ** (trips - 1), 300) * 0.9 <= cooldown <= min(30 * 2 ** (trips - 1) * 1.1, 300)
    assert seconds == [cooldown_seconds(trips, LIMITS, "seed") for trips in range(1, 8)]
    assert len({cooldown_seconds(1, LIMITS, f"seed {number}") for number in range(100)}) == 100


def test_the_sixth_trip_within_an_hour_stops_it_until_a_person_allows_a_call() -> None:
    breaker, at = CLOSED, BEGAN
    for _ in range(5):
        breaker = ended("schema", "schema", breaker=breaker, at=at)
        assert breaker.status == "open"
        at = breaker.retry_at
        breaker, _ = play(breaker, Called("probe"), at)
        breaker, _ = play(breaker, Ended("probe", breaker.epoch), at)
    _, changes = play(ended("schema", breaker=breaker, at=at), Ended("c", breaker.epoch, "schema"), at)
    assert [change.target for change in changes] == ["open", "stopped"]
    stopped = ended("schema", "schema", breaker=breaker, at=at)
    assert stopped.status == "stopped"
    assert refuses(stopped, Called("c"), add_seconds(at, 10**6))
    assert not refuses(stopped, Called("c", approved=True), at)
    breaker, [change] = play(stopped, Called("c", approved=True), at)
    assert (breaker.status, breaker.trips, change.reason) == ("half_open", (), "approved")


def test_a_trip_of_more_than_an_hour_ago_does_not_count() -> None:
    breaker = Breaker(trips=(HOUR_AGO,) * 5)
    assert ended("schema", "schema", breaker=breaker).trips == (add_seconds(BEGAN, 1),)


def test_the_lease_of_a_probe_ends_with_the_deadline_of_its_call() -> None:
    due, until = replace(OPEN, retry_at=BEGAN), add_seconds(BEGAN, 7)
    assert play(due, Called("c", until), BEGAN)[0].lease == until
    assert play(due, Called("c"), BEGAN)[0].lease == add_seconds(BEGAN, 120)
    assert play(due, Called("c", add_seconds(BEGAN, 10_000)), BEGAN)[0].lease == add_seconds(BEGAN, 120)


def test_limits_are_not_needed_to_fold_a_log() -> None:
    """The changes are recorded: with other limits the same breaker comes of them."""
    strict, loose = BreakerLimits(transport=1), BreakerLimits(transport="unlimited", share=1.0)
    _, changes = play(CLOSED, Ended("c", 0, "transport"), BEGAN, strict)
    assert [change.target for change in changes] == ["open"]
    assert play(CLOSED, Ended("c", 0, "transport"), BEGAN, loose)[1] == []
