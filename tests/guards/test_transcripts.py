"""Guards over transcripts: none trips in healthy ones, and in sick ones they do at the stated line."""

from __future__ import annotations

import pytest

from antiphon.cli.inspect_command import inspecting_guards
from antiphon.orchestration.transcripts import inspect_transcript, read_transcript
from tests.support.transcripts import HEALTHY, SICK, jsonl

Tripped = list[tuple[int, str, object]]


def trips_in(lines: list[str]) -> Tripped:
    found = inspect_transcript(read_transcript(lines), inspecting_guards())
    return [(trip.line, trip.guard, trip.envelope.event_data["action"]) for trip in found]


def test_there_are_enough_of_them() -> None:
    assert len(HEALTHY) >= 30
    assert len(SICK) >= 10


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_trips_in_a_healthy_transcript(name: str) -> None:
    assert trips_in(jsonl(HEALTHY[name])) == []


@pytest.mark.parametrize("name", SICK)
def test_a_sick_transcript_trips_at_the_stated_line(name: str) -> None:
    script, expected = SICK[name]
    assert trips_in(jsonl(script)) == expected
