"""`antiphon check`, `antiphon draw` and `antiphon replay`: graphs in files, and logs decided again."""

import asyncio
import json
from pathlib import Path

import pytest

from antiphon import (
    AgentTarget,
    Always,
    ContextEquals,
    FromSpeaker,
    Hub,
    TerminateTarget,
    Transition,
    TransitionGraph,
)
from antiphon.core.conditions import CONDITIONS
from antiphon.testing import ManualClock
from tests.cli.conftest import Run, Town, typed

URGENT = ContextEquals("urgent", True)
TRIAGE = TransitionGraph(
    initial_speaker="triage",
    transitions=[
        Transition(FromSpeaker("triage") & URGENT, AgentTarget("oncall")),
        Transition(FromSpeaker("triage"), AgentTarget("review")),
    ],
    default_target=TerminateTarget("done"),
)
STICKY = TransitionGraph(
    initial_speaker="triage",
    transitions=[Transition(URGENT, AgentTarget("oncall")), Transition(FromSpeaker("triage"), AgentTarget("review"))],
    default_target=TerminateTarget("done"),
)
RULES = """
from dataclasses import dataclass
from typing import ClassVar
from antiphon import register_condition

@register_condition
@dataclass(frozen=True)
class Shouted:
    name: ClassVar[str] = "cli_test_shouted"
    times: int

    def evaluate(self, state, envelope):
        return str(envelope.event_data.get("text", "")).count("!") >= self.times
"""


def written(folder: Path, data: object, name: str = "graph.json") -> str:
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


# check


def test_a_sound_graph(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, TRIAGE.to_dict())
    result = run("check", path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"ok  {path}: nothing is wrong among triage, oncall, review\n"
    found = json.loads(run("check", path, "--json").stdout)
    assert found == {"ok": True, "participants": ["triage", "oncall", "review"], "findings": []}


def test_warnings_are_told_and_are_no_failure(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, STICKY.to_dict())
    result = run("check", path)
    assert result.exit_code == 0
    title, _, row = result.stdout.splitlines()
    assert title == f"0 errors, 1 warning  {path}"
    assert row.startswith("warning  sticky_loop  ")
    assert "triage (urgent = True) → oncall → oncall → …" in row


def test_errors_make_it_fail(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, TRIAGE.to_dict())
    result = run("check", path, "--participant", "triage", "--participant", "oncall")
    assert result.exit_code == 1
    assert (
        "transition 1 gives the turn to 'review', who is not a participant; there are: triage, oncall" in result.stdout
    )
    found = json.loads(run("check", path, "--participant", "triage", "--json").stdout)
    assert [each["code"] for each in found["findings"]] == ["unknown_target", "unknown_target"]


def test_knobs_are_taken_into_account(run: Run, tmp_path: Path) -> None:
    knobs = {"graph": TRIAGE.to_dict(), "tier": "regulated", "participants": ["triage", "oncall", "review"]}
    path = written(tmp_path, knobs)
    result = run("check", path)
    assert result.exit_code == 1
    assert "anybody may write 'urgent'" in result.stdout
    assert run("check", written(tmp_path, {**knobs, "writers": {"urgent": ["triage"]}})).exit_code == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no JSON"),
        ("x = 1", "is no JSON: Expecting value: line 1 column 1 (char 0); a Python file is read as one if its name"),
        ("[]", "holds []; give a JSON object: a graph has 'transitions', or stands in 'graph'; a router has 'rules'"),
        ("{}", "holds no graph, router or pipeline: a graph has 'transitions', or stands in 'graph'; a router has"),
        ('{"stage": []}', "a pipeline has 'stages'. Write one with json.dumps(pipeline.to_dict())"),
        (
            '{"transitions": []}',
            "the graph has no 'initial_speaker'; it needs: initial_speaker, transitions, default_target",
        ),
        (
            '{"initial_speaker": "a", "transitions": [], "default_target": {"name": "nobody"}}',
            "default_target: no target is called 'nobody'; there are: ",
        ),
    ],
)
def test_what_is_no_graph_is_an_error_that_says_why(text: str, why: str, run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    result = run("check", path)
    assert (result.exit_code, result.stderr) == (1, "")
    assert why in result.stdout
    assert json.loads(run("check", path, "--json").stdout)["findings"][0]["code"] == "invalid"


def test_a_file_that_is_not_there_is_a_wrong_call(run: Run) -> None:
    for command in ("check", "draw"):
        result = run(command, "nowhere.json")
        assert result.exit_code == 2
        assert "there is no file 'nowhere.json'" in result.stderr


def test_rules_of_ones_own_are_registered_first(tmp_path: Path) -> None:
    graph = STICKY.to_dict()
    graph["transitions"][0]["when"] = {"name": "cli_test_shouted", "args": {"times": 2}}  # type: ignore[index]  # a list
    path, rules = written(tmp_path, graph), written(tmp_path, RULES, "rules.py")
    refused = typed("check", path)
    assert refused.returncode == 1
    assert "no condition is called 'cli_test_shouted'" in refused.stdout
    assert typed("check", path, "--rules", rules).returncode == 0
    assert "Shouted(times=2)" in typed("draw", path, "--rules", rules).stdout
    broken = typed("check", path, "--rules", written(tmp_path, "1 / 0", "broken.py"))
    assert broken.returncode == 1
    assert "broken.py: ZeroDivisionError: division by zero" in broken.stderr
    assert typed("check", path, "--rules", "nowhere.py").returncode == 2


def test_nothing_of_that_is_registered_here() -> None:
    assert "cli_test_shouted" not in CONDITIONS._registered


# draw


def test_a_drawing(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, TRIAGE.to_dict())
    result = run("draw", path)
    assert (result.exit_code, result.stdout) == (0, TRIAGE.to_mermaid())
    lines = [
        "0: from triage and urgent = true → to oncall",
        "1: from triage → to review",
        "otherwise → end: done",
    ]
    assert run("draw", path, "--table").stdout.splitlines() == lines
    assert json.loads(run("draw", path, "--json").stdout) == {"mermaid": TRIAGE.to_mermaid(), "table": lines}


def test_what_cannot_be_drawn(run: Run, tmp_path: Path) -> None:
    result = run("draw", written(tmp_path, '{"transitions": []}'))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the graph has no 'initial_speaker'" in result.stderr


# replay


@pytest.fixture
def ticket(tmp_path: Path) -> tuple[str, str]:
    """A store in which an urgent ticket went to oncall, and the channel it did so in."""
    path = tmp_path / "tickets.db"
    return str(path), asyncio.run(handled(path))


async def handled(path: Path) -> str:
    async with Hub.open(f"sqlite:///{path}", clock=ManualClock()) as hub:
        triage, oncall, _ = [await hub.register(name) for name in ("triage", "oncall", "review")]
        channel = await triage.open(type="workflow", target=["oncall", "review"], knobs={"graph": TRIAGE.to_dict()})
        build = hub.adapter_for(channel.channel_id).build_packet_envelope
        await hub.post(build(sender_id="triage", body="It burns.", context_set={"urgent": True}))
        await (await oncall.channel(channel.channel_id)).send("Put out.")
        return channel.channel_id


def test_the_same_rules_decide_the_same(run: Run, ticket: tuple[str, str]) -> None:
    store, channel = ticket
    result = run("replay", channel, store)
    assert (result.exit_code, result.stdout) == (0, "same  3 decisions made again, each as it was recorded\n")
    found = json.loads(run("replay", channel, store, "--json").stdout)
    assert found == {"same": True, "decisions": 3, "difference": None}


def test_the_first_difference_is_shown(run: Run, ticket: tuple[str, str], tmp_path: Path) -> None:
    store, channel = ticket
    other = TransitionGraph("triage", [Transition(Always(), AgentTarget("review"))], TerminateTarget("over"))
    graph = written(tmp_path, other.to_dict())
    result = run("replay", channel, store, "--graph", graph)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "different  after sequence 9 by triage; 2 decisions made again until then",
        "  recorded: gives the turn to oncall by rule 0: from triage and urgent = true",
        "  now:      gives the turn to review by rule 0: always",
    ]
    found = json.loads(run("replay", channel, store, "--graph", graph, "--json").stdout)
    assert (found["same"], found["difference"]["sequence"]) == (False, 9)


def test_what_cannot_be_replayed(run: Run, ticket: tuple[str, str], town: Town, tmp_path: Path) -> None:
    result = run("replay", "nothing", ticket[0])
    assert (result.exit_code, result.stderr) == (1, "Error: no channel 'nothing'\n")
    graph = written(tmp_path, TRIAGE.to_dict())
    result = run("replay", town.council, town.url, "--graph", graph)
    assert result.exit_code == 1
    assert "a channel of type 'discussion' has no graph that another could replace" in result.stderr


def test_channels_of_other_types_can_be_replayed(run: Run, town: Town) -> None:
    result = run("replay", town.council, town.url)
    assert (result.exit_code, result.stdout) == (0, "same  3 decisions made again, each as it was recorded\n")
