"""`antiphon check` and `antiphon draw`: pipelines and routers in files."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon import RulesInvalid
from antiphon.cli.graph_commands import read_graph_file
from antiphon.cli.program import PROGRAM_MODULE_NAME
from antiphon.orchestration.handoff_rules import HandoffRules
from antiphon.orchestration.pipeline import ConversationPipeline, PipelineStage
from antiphon.orchestration.router import ConversationRouter, RoutingConditions, RoutingRule
from tests.cli.conftest import Run, typed

PIPELINE = ConversationPipeline(
    [
        PipelineStage("intake", "triage", next="handling"),
        PipelineStage("handling", "billing", can_return_to={"intake"}),
    ],
    supervisor_id="watcher",
)
ROUTER = ConversationRouter(
    [RoutingRule("billing", RoutingConditions(intents={"billing"}))], default_agent_id="triage", supervisor_id="watcher"
)
RULES = """
from antiphon.orchestration.predicates import register_predicate

@register_predicate("cli_test_vip")
def vip(event, context, state):
    return True
"""


PROGRAM = """
from antiphon import Agent, ConversationPipeline, HandoffHandler, PipelineStage, ScriptedModel, TransitionGraph

print("loaded")
agents = [Agent("triage", ScriptedModel([])), Agent("billing", ScriptedModel([]))]
participants = ["ann", "dana", "triage", "billing"]
pipeline = ConversationPipeline([PipelineStage("intake", "triage", next="sale"), PipelineStage("sale", "billing")])
"""


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop(PROGRAM_MODULE_NAME, None)


def written(folder: Path, data: object, name: str = "rules.json") -> str:
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (PIPELINE.to_dict(), ["triage", "billing", "watcher"]),
        (PIPELINE.to_router().to_dict(), ["triage", "billing", "watcher"]),
        (ROUTER.to_dict(), ["billing", "triage", "watcher"]),
        ({"router": ROUTER.to_dict(), "participants": ["ann", "triage", "billing", "watcher"]}, ["ann", "triage"]),
    ],
)
def test_sound_rules(run: Run, tmp_path: Path, data: object, names: list[str]) -> None:
    path = written(tmp_path, data)
    result = run("check", path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"ok  {path}: nothing is wrong among {', '.join(names)}")
    found = json.loads(run("check", path, "--json").stdout)
    assert (found["ok"], found["findings"], found["participants"][: len(names)]) == (True, [], names)


def test_warnings_are_no_failure(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, PIPELINE.to_dict())
    result = run("check", path, "--participant", "triage", "--participant", "watcher")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == f"0 errors, 1 warning  {path}"
    assert "rule 1: 'billing' is not a participant; there are: triage, watcher" in result.stdout


def test_handoff_rules_that_do_not_fit_make_it_fail(run: Run, tmp_path: Path) -> None:
    handoff = HandoffRules({"money": "sales"}).to_dict()
    path = written(tmp_path, {"router": ROUTER.to_dict(), "handoff": handoff})
    result = run("check", path, "--json")
    assert result.exit_code == 1
    assert [each["code"] for each in json.loads(result.stdout)["findings"]] == ["unknown_agent"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"stages": []}, "the pipeline: stages is empty; give at least one PipelineStage"),
        ({"stages": [{"phase": "a", "agent_id": "x", "next": "b"}]}, "next names the phase 'b', which no stage has"),
        ({"rules": [{"agent_id": "a b"}]}, "the router: rule 0: agent_id: 'a b' is no name"),
        ({"router": 7}, "the router is 7; give a dict"),
        ({"router": {}, "handoff": []}, "handoff is []; give a dict"),
        ({"stages": [{"phase": "a", "agent_id": "hub"}]}, "stage 'a': agent_id: the name 'hub' is taken"),
    ],
)
def test_wrong_rules_are_an_error_that_says_why(run: Run, tmp_path: Path, data: object, why: str) -> None:
    path = written(tmp_path, data)
    checked, drawn = run("check", path, "--json"), run("draw", path)
    assert (checked.exit_code, drawn.exit_code, drawn.stdout) == (1, 1, "")
    (fault,) = json.loads(checked.stdout)["findings"]
    assert (fault["code"], fault["message"].startswith(f"{path}: ")) == ("invalid", True)
    assert why in fault["message"]
    assert why in drawn.stderr


@pytest.mark.parametrize("rules", [PIPELINE, ROUTER])
def test_drawings(run: Run, tmp_path: Path, rules: ConversationPipeline | ConversationRouter) -> None:
    path = written(tmp_path, rules.to_dict())
    result = run("draw", path)
    assert (result.exit_code, result.stdout) == (0, rules.to_mermaid())
    assert run("draw", path, "--table").stdout.splitlines() == rules.summarize()
    found = json.loads(run("draw", path, "--json").stdout)
    assert found == {"mermaid": rules.to_mermaid(), "table": rules.summarize()}


def test_predicates_are_registered_first(tmp_path: Path) -> None:
    rule = {"agent_id": "triage", "conditions": {"custom": "cli_test_vip"}}
    path, rules = written(tmp_path, {"rules": [rule]}), written(tmp_path, RULES, "rules.py")
    refused = typed("check", path)
    assert refused.returncode == 1
    assert "no predicate is called 'cli_test_vip'; register it" in refused.stdout
    assert typed("check", path, "--rules", rules).returncode == 0
    assert "0: cli_test_vip → triage" in typed("draw", path, "--rules", rules, "--table").stdout


def test_a_log_is_not_replayed_with_a_router(tmp_path: Path) -> None:
    with pytest.raises(RulesInvalid, match="holds a router or a pipeline; give a graph"):
        read_graph_file(written(tmp_path, PIPELINE.to_dict()))


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("", ["ann", "triage", "billing", "dana"]),
        ("participants = None", ["user", "triage", "billing"]),
        ("given = agents\ndef agents(): return given", ["ann", "dana", "triage", "billing"]),
        ("pipeline = pipeline.to_dict()", ["ann", "triage", "billing", "dana"]),
        ("pipeline, graph = None, TransitionGraph.sequence(['triage', 'billing'])\nparticipants = None",
         ["user", "triage", "billing"]),
        ("pipeline, graph = None, TransitionGraph.sequence(['triage', 'billing'])\nparticipants = None\n"
         "given = agents\ndef agents(): return given", ["triage", "billing"]),
    ],
)  # fmt: skip
def test_a_program_is_checked_with_its_participants(run: Run, tmp_path: Path, more: str, names: list[str]) -> None:
    result = run("check", written(tmp_path, PROGRAM + more, "team.py"), "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "loaded\n")
    assert found == {"ok": True, "participants": names, "findings": []}


def test_the_rules_of_a_program_are_drawn(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, PROGRAM, "team.py")
    assert run("draw", path, "--table").stdout.splitlines() == ["intake: triage → sale", "sale: billing → end"]
    assert run("draw", path).stdout.startswith("flowchart")
    path = written(tmp_path, PROGRAM + "router, pipeline = pipeline.to_router(), None", "team.py")
    assert run("draw", path, "--table").stdout.splitlines()[0] == "active agent → the same agent"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            "pipeline = None\nrouter = {'default_agent_id': 'sales'}",
            "default_agent_id: 'sales' is not a participant; there are: ann, triage, billing, dana",
        ),
        (
            "pipeline = None\nrouter = {'default_agent_id': 'dana'}",
            "default_agent_id: 'dana' is of kind human; only agents are given turns by rules",
        ),
    ],
)
def test_a_program_that_routes_to_no_agent(run: Run, tmp_path: Path, more: str, told: str) -> None:
    assert told in run("check", written(tmp_path, PROGRAM + more, "team.py")).stdout


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("pipeline = None", "team.py defines no graph, router or pipeline; add one"),
        ("agents = pipeline = None", "team.py defines no graph, router or pipeline; add one"),
        ("PIPELINE, pipeline = pipeline, None", "no graph, router or pipeline; it has 'PIPELINE': call it 'pipeline'"),
        ("1 / 0", "team.py:8: ZeroDivisionError: division by zero"),
        ("pipeline = ConversationPipeline([])", "team.py:8: stages is empty; give at least one PipelineStage"),
        ("pipeline = {'stages': [7]}", "team.py: the pipeline: stage 0 is 7"),
        ("router = {}", "team.py defines a router and a pipeline; keep one of them"),
    ],
)
def test_a_program_without_rules_or_with_a_mistake(run: Run, tmp_path: Path, more: str, told: str) -> None:
    path = written(tmp_path, PROGRAM + more, "team.py")
    for command in ("draw", "draw --json"):
        result = run(*command.split(" "), path)
        assert (result.exit_code, result.stdout) == (1, "")
        assert told in result.stderr
    for options in ((), ("--json",)):
        result = run("check", path, *options)
        assert result.exit_code == 1
        assert told in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("", ["ann", "dana", "triage", "billing"]),
        ("participants = None", ["triage", "billing"]),
        ("participants = None\nrouter, pipeline = pipeline.to_router(), None", ["triage", "billing"]),
        ("pipeline, graph = None, TransitionGraph.sequence(['ann', 'dana', 'triage', 'billing'])",
         ["ann", "dana", "triage", "billing"]),
    ],
)  # fmt: skip
def test_a_program_of_rules_alone_needs_no_agents(run: Run, tmp_path: Path, more: str, names: list[str]) -> None:
    path = written(tmp_path, f"{PROGRAM}{more}\nagents = None", "team.py")
    found = json.loads(run("check", path, "--json").stdout)
    assert found == {"ok": True, "participants": names, "findings": []}
    assert run("draw", path).stdout.startswith("flowchart")


def test_a_graph_of_a_program_that_names_nobody_of_it(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, f"{PROGRAM}pipeline, graph = None, TransitionGraph.sequence(['ann', 'ben'])", "team.py")
    result = run("check", path)
    assert (result.exit_code, result.stderr) == (1, "loaded\n")
    assert "transition 0 gives the turn to 'ben', who is not a participant; there are: ann, dana," in result.stdout


@pytest.mark.parametrize("text", ['{"stages": [', "", "pipeline = 7"])
def test_a_broken_json_file(run: Run, tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    checked, drawn = run("check", path, "--json"), run("draw", path, "--json")
    assert (checked.exit_code, drawn.exit_code, drawn.stdout) == (1, 1, "")
    (fault,) = json.loads(checked.stdout)["findings"]
    assert fault["message"].startswith(f"{path} is no JSON: Expecting value: line 1 column ")
    assert fault["message"].endswith("; a Python file is read as one if its name ends in .py")
    assert f"Error: {path} is no JSON: Expecting value" in drawn.stderr
