"""`antiphon run` and `antiphon serve` with a file that routes its conversation: a router, or a pipeline."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from antiphon import ConversationPipeline, PipelineStage, UsageError
from antiphon.cli.program import PROGRAM_MODULE_NAME, load_program
from antiphon.core.codec import plain_data
from antiphon.core.conversation_events import (
    CONVERSATION_STRUCTS,
    EV_CONVERSATION_MOVED,
    EV_CONVERSATION_REFUSED,
    EV_CONVERSATION_RELEASED,
    EV_CONVERSATION_UNROUTED,
    EV_REPLY_DELIVERED,
    EV_REPLY_UNDELIVERABLE,
    EV_TRANSPORT_CONNECTED,
    ConversationMoved,
)
from antiphon.core.envelope import Envelope, Json
from antiphon.orchestration.handoff_rules import HandoffRules
from antiphon.runtime.conversation_text import notice_line
from antiphon.runtime.envelope_text import describe_envelope
from tests.cli.conftest import Run, typed
from tests.cli.terminal import Terminal
from tests.cli.test_serve import client, served

HEAD = """
from antiphon import (
    Agent, ConversationPipeline, ConversationRouter, HandoffHandler, PipelineStage, RoutingConditions, RoutingRule,
    ScriptedModel, TransitionGraph, calls, says,
)

def hand_over(target, text=""):
    return calls("handoff_conversation", {"target": target, "reason": "an invoice", "summary": "S"}, text=text)

triage = Agent("triage", ScriptedModel([hand_over("billing", "One moment."), "Here I am."]))
billing = Agent("billing", ScriptedModel(["It was charged once.", hand_over("dana", "I get Dana."), "Welcome."]))
agents = [triage, billing]
stages = [PipelineStage("intake", "triage", next="handling"), PipelineStage("handling", "billing")]
pipeline = ConversationPipeline(stages)
participants = ["user", "dana", "triage", "billing"]
title = "Refund desk!"
"""
ROUTED = HEAD.replace(
    "pipeline = ConversationPipeline(stages)", "router = ConversationRouter(default_agent_id='triage')"
)
FIRST = """\
you> Was I charged twice?
triage: One moment.
— triage → billing (handling): an invoice
billing: It was charged once.
"""
HOLD = """\
you> A person, please.
billing: I get Dana.
— dana has the conversation (handling): an invoice
"""


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop(PROGRAM_MODULE_NAME, None)


def written(folder: Path, text: str = "", *, head: str = HEAD) -> str:
    path = folder / "team.py"
    path.write_text(head + dedent(text), encoding="utf-8")
    return str(path)


def said(*lines: str) -> list[str]:
    return [word for line in lines for word in ("-m", line)]


# What a file may define


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("", HandoffRules(phase_map={"triage": "intake", "billing": "handling"}, allowed_transitions={
            "intake": {"handling"}, "handling": ()})),
        ("handoff = {}", HandoffRules()),
        ("handoff = HandoffHandler(router=pipeline.to_router(), agent_aliases={'money': 'billing'})",
         HandoffRules({"money": "billing"})),
        ("pipeline = pipeline.to_dict()\nhandoff = {'agent_aliases': {'money': 'billing'}}",
         HandoffRules({"money": "billing"})),
        ("router = pipeline.to_router().to_dict()\npipeline = None", None),
        ("router = pipeline.to_router()\npipeline = None", None),
    ],
)  # fmt: skip
def test_a_router_or_a_pipeline_and_handoffs(text: str, rules: HandoffRules | None, tmp_path: Path) -> None:
    routing = load_program(written(tmp_path, text)).routing
    assert routing is not None
    stages = [PipelineStage("intake", "triage", next="handling"), PipelineStage("handling", "billing")]
    assert routing.router == ConversationPipeline(stages).to_router()
    assert (routing.handoff, routing.name) == (rules, "refund-desk")


@pytest.mark.parametrize(
    ("title", "name"),
    [("None", "conversation"), ("'  Ünïcode 7  '", "n-code-7"), ("'…'", "conversation"), ("'x' * 99", "x" * 48)],
)
def test_a_title_is_made_a_name(title: str, name: str, tmp_path: Path) -> None:
    routing = load_program(written(tmp_path, f"title = {title}")).routing
    assert routing is not None
    assert routing.name == name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "graph = TransitionGraph.sequence(['a', 'b'])",
            "team.py defines a graph and a pipeline; keep the graph if its",
        ),
        (
            "router, graph, pipeline = pipeline.to_router(), TransitionGraph.sequence(['a', 'b']), None",
            "team.py defines a graph and a router; keep the graph",
        ),
        ("router = pipeline.to_router()", "team.py defines a router and a pipeline; keep one of them"),
        ("pipeline = None\nhandoff = {}", "defines handoff without a router or a pipeline"),
        ("router, pipeline = 'triage', None", r"team.py: router is 'triage'; give a ConversationRouter"),
        ("router, pipeline = pipeline, None", "router is a ConversationPipeline; call it pipeline"),
        ("router, pipeline = {'rules': [{'agent_id': 7}]}, None", "team.py: the router: rule 0: agent_id"),
        ("pipeline = 7", "team.py: pipeline is 7; give a ConversationPipeline"),
        ("pipeline = {'stages': []}", "team.py: the pipeline: stages is empty"),
        ("pipeline = ConversationPipeline([])", r"team.py:\d+: stages is empty"),
        ("handoff = 'billing'", "team.py: handoff is 'billing'; give a HandoffHandler"),
        ("handoff = {'agent_aliases': {'money': 'bill'}}", r"team.py: agent_aliases\['money'\] is 'bill', which is"),
        ("agents = None", "team.py defines no agents, to whom messages could be routed"),
        (
            "agents = pipeline = None\nRULES = ConversationRouter()\ndel triage, billing",
            "it has 'RULES': call it 'router'",
        ),
        ("agents = pipeline = None\ndel triage, billing\nmine = ConversationPipeline(stages)", "call it 'pipeline'"),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        load_program(written(tmp_path, text))


def test_an_agent_cannot_be_chosen(run: Run, tmp_path: Path) -> None:
    done = run("run", written(tmp_path), "--agent", "billing", "-m", "Hello")
    assert done.exit_code == 2
    assert "defines a router, which says who speaks; leave --agent out" in done.stderr


# Run


def test_handoffs_and_a_hold_are_shown_as_they_happen(tmp_path: Path) -> None:
    lines = said("Was I charged twice?", "A person, please.", "Hello?")
    done = typed("run", written(tmp_path), "--no-tokens", *lines)
    held = "— for dana: no agent answers until it is released\n"
    assert (done.returncode, done.stdout) == (0, f"{FIRST}{HOLD}you> Hello?\n{held}You leave.\n")


def test_the_same_as_json(tmp_path: Path) -> None:
    lines = said("Was I charged twice?", "A person, please.")
    done = typed("run", written(tmp_path), "--json", *lines)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [each["event"] for each in told if each["event"] not in ("tool_usage", "tool_response")] == [
        *("user_message", "ai_message", "moved", "ai_message"),
        *("user_message", "ai_message", "moved", "done"),
    ]
    first, second = (each for each in told if each["event"] == "moved")
    assert (first["from_agent"], first["to_agent"], first["to_phase"]) == ("triage", "billing", "handling")
    assert (second["to_agent"], second["person"]) == (None, "dana")


def test_a_conversation_goes_on_in_its_store(tmp_path: Path) -> None:
    path, store = written(tmp_path), str(tmp_path / "team.db")
    first = typed("run", path, "--store", store, *said("Was I charged twice?"))
    assert first.stdout == f"{FIRST}You leave. The same command goes on from here.\n"
    other = typed("run", path, "--store", store, "--thread-id", "other", *said("Was I charged twice?"))
    assert other.stdout == first.stdout
    path = written(tmp_path, head=HEAD.replace('"It was charged once.", ', ""))
    second = typed("run", path, "--store", store, *said("A person, please."))
    assert second.stdout.startswith(f"{FIRST}{HOLD}")


def test_a_message_without_an_agent_and_a_refused_handoff(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        router = ConversationRouter([RoutingRule("triage", RoutingConditions(phases={"handling"}))])
        """,
        head=ROUTED,
    )
    done = typed("run", path, *said("Hello?"))
    assert (done.returncode, done.stdout) == (0, "you> Hello?\n— no agent answers this message\nYou leave.\n")
    path = written(
        tmp_path, 'agents[0] = Agent("triage", ScriptedModel([hand_over("sales"), "I do it."]))', head=ROUTED
    )
    done = typed("run", path, *said("Hello?"))
    assert done.stdout == dedent("""\
        you> Hello?
        — triage → sales is refused: target_not_found
        triage: I do it.
        You leave.
    """)


def test_a_router_that_names_no_agent_of_the_file_is_warned_of(tmp_path: Path) -> None:
    path = written(tmp_path, "router = ConversationRouter(default_agent_id='sales')", head=ROUTED)
    told = "default_agent_id: 'sales' is not a participant; there are: user, triage, billing, dana"
    done = typed("run", path, *said("Hello?"))
    assert done.stdout.splitlines() == [
        f"warns of its router: {told}",
        "you> Hello?",
        done.stdout.splitlines()[2],
        "— no agent answers this message",
        "You leave.",
    ]
    assert "'sales', who is not an agent of this channel" in done.stdout.splitlines()[2]
    assert "None" not in done.stdout
    with served(path) as begun:
        assert begun["warnings"] == [f"the router: {told}"]


def test_a_turn_that_fails_ends_it_and_the_next_run_goes_on(tmp_path: Path) -> None:
    store = str(tmp_path / "team.db")
    path = written(tmp_path, 'agents[0] = Agent("triage", ScriptedModel([OSError("no line")]))')
    done = typed("run", path, "--store", store, *said("Hello?", "Never said."))
    assert done.returncode == 1
    assert done.stdout.endswith("  triage stopped: model_error: OSError: no line\n")
    path = written(tmp_path, 'agents[0] = Agent("triage", ScriptedModel(["I am back."]))')
    done = typed("run", path, "--store", store, *said("Hello??"))
    assert (done.returncode, done.stdout.endswith("you> Hello??\ntriage: I am back.\n")) == (0, False)
    assert "you> Hello??\ntriage: I am back.\n" in done.stdout
    assert "Never said." not in done.stdout


def test_a_person_at_a_terminal_is_everybody_who_is_no_agent(tmp_path: Path) -> None:
    with Terminal("run", written(tmp_path)) as terminal:
        assert "Refund desk!: user, triage, billing, dana talk; you are user, dana." in terminal.see("you> ")
        terminal.type("Was I charged twice?\n")
        terminal.see("billing: It was charged once.\n")
        terminal.see("you> ")
        terminal.type("A person, please.\n")
        terminal.see("— dana has the conversation (handling): an invoice\n")
        terminal.see("you> ")
        terminal.type("Is Dana there?\n")
        terminal.see("— for dana: no agent answers until /release\n")
        terminal.see("you> ")
        terminal.type("/help\n")
        terminal.see("/as NAME")
        terminal.see("/release")
        terminal.see("you> ")
        terminal.type("/as ben\n")
        terminal.see("no person is called 'ben' here; there are: user, dana")
        terminal.type("/as dana\n")
        terminal.see("dana> ")
        terminal.type("It is paid back.\n")
        terminal.see("dana> ")
        terminal.type("/release billing\n")
        terminal.see("— dana gives the conversation back to billing\n")
        terminal.type("/release\n")
        terminal.see("not_held in channel")
        terminal.type("/as user\n")
        terminal.see("you> ")
        terminal.type("Thanks\n")
        terminal.see("billing: Welcome.\n")
        terminal.see("you> ")
        terminal.type("/quit\n")
        assert terminal.end() == 0
        assert terminal.text.count("no agent answers until") == 1  # not what dana says, nor after the release


def test_only_what_is_said_to_a_person_now_is_said_to_be_held(tmp_path: Path) -> None:
    path, store = written(tmp_path), str(tmp_path / "team.db")
    held = "— for dana: no agent answers until it is released\n"
    typed("run", path, "--store", store, *said("Was I charged twice?", "A person, please.", "Hello?"))
    done = typed("run", path, "--store", store, *said("Anybody?"))
    assert f"{HOLD}you> Hello?\nyou> Anybody?\n{held}You leave." in done.stdout
    assert done.stdout.count(held) == 1


def test_a_hold_for_any_person_is_one_for_a_person(tmp_path: Path) -> None:
    path = written(tmp_path, 'agents[0] = Agent("triage", ScriptedModel([hand_over("human", "One moment.")]))')
    done = typed("run", path, *said("A person, please.", "Hello?"))
    assert done.stdout.endswith(
        "— a person has the conversation (intake): an invoice\n"
        "you> Hello?\n— for a person: no agent answers until it is released\nYou leave.\n"
    )


# Serve


def test_a_served_router_that_names_no_agent_of_the_file_is_warned_of(tmp_path: Path) -> None:
    path = written(tmp_path, "router = ConversationRouter(default_agent_id='dana')", head=ROUTED)
    with Terminal("serve", path, "--port", "0") as terminal:
        terminal.see("Warning: the router: default_agent_id: 'dana' is of kind human; only agents are")
        terminal.see("Kept in memory")
    with served(written(tmp_path)) as begun:
        assert begun["warnings"] == []


def test_a_served_conversation_is_a_model(tmp_path: Path) -> None:
    with served(written(tmp_path)) as begun, client(begun) as http:
        assert (begun["agents"], begun["conversation"]) == (["triage", "billing"], "refund-desk")
        assert [each["id"] for each in http.get("/v1/models").json()["data"]] == ["triage", "billing", "refund-desk"]
        body = {"model": "refund-desk", "messages": [{"role": "user", "content": "Was I charged twice?"}]}
        answer = http.post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == "One moment.\n\nIt was charged once."
        assert answer["antiphon"]["conversation"]["handoffs"][0]["phase"] == "handling"
        shown = http.get(f"/channels/{answer['antiphon']['channel_id']}").json()
        assert list(shown["participants"]) == ["user", "triage", "billing", "dana"]
        assert shown["conversation"]["active_agent_id"] == "billing"
        made = http.post("/channels", json={"type": "routed", "target": ["triage", "billing"]})  # with that router
        assert made.status_code == 201


def test_a_title_that_is_the_name_of_an_agent_is_refused(tmp_path: Path) -> None:
    done = typed("serve", written(tmp_path, "title = 'Billing'"), "--port", "0")
    assert done.returncode == 1
    assert (
        "'billing' is the name of an agent, and of the conversation; give the conversation another title" in done.stderr
    )


# In words


WORDS: list[tuple[str, Json, str]] = [
    (
        EV_CONVERSATION_MOVED,
        {"from_phase": "a", "to_phase": "b", "from_agent": "x", "to_agent": "y", "reason": "a bill", "by": "x"},
        "moves the conversation from x to y in phase b: a bill",
    ),
    (
        EV_CONVERSATION_MOVED,
        {"from_phase": "a", "to_phase": "a", "from_agent": "x", "to_agent": None, "reason": "", "person": "human"},
        "gives the conversation to a person in phase a",
    ),
    (
        EV_CONVERSATION_REFUSED,
        {"from_agent": "x", "target": "z", "reason": "target_not_found"},
        "refuses the handoff of x to z: target_not_found",
    ),
    (EV_CONVERSATION_RELEASED, {"by": "dana", "to": None}, "ends the hold for dana"),
    (EV_CONVERSATION_RELEASED, {"by": "dana", "to": "x"}, "ends the hold for dana; x answers next"),
    (EV_CONVERSATION_UNROUTED, {"message": "m1"}, "finds no agent for message m1"),
    (EV_TRANSPORT_CONNECTED, {"names": ["sms", "web"]}, "connects the transports sms, web"),
    (EV_REPLY_DELIVERED, {"transport": "sms", "reply": "e", "sequence": 9}, "has delivered reply 9 by sms"),
    (
        EV_REPLY_UNDELIVERABLE,
        {"transport": "sms", "reply": "e", "sequence": 9, "error": "no such number"},
        "cannot deliver reply 9 by sms: no such number",
    ),
]


@pytest.mark.parametrize(("event_type", "data", "words"), WORDS)
def test_events_of_conversations_in_words(event_type: str, data: Json, words: str) -> None:
    assert describe_envelope(Envelope(sender_id="hub", event_type=event_type, event_data=data)) == words


def test_every_event_of_conversations_has_words() -> None:
    assert {event_type for event_type, _, _ in WORDS} == CONVERSATION_STRUCTS.keys()


@pytest.mark.parametrize(
    ("before", "after", "sentence", "line"),
    [
        (("a", "x"), ("b", "y"), "moves the conversation from x to y in phase b: r", "x → y (b): r"),
        (("a", None), ("a", "y"), "moves the conversation to y in phase a: r", "→ y (a): r"),
        (
            ("a", "x"),
            ("b", None),
            "lets each message be routed again in phase b: r",
            "each message is routed again (b): r",
        ),
        (("a", "x"), ("b", "x"), "puts the conversation into phase b: r", "phase b: r"),
        (("a", "x"), ("a", "x"), "puts the conversation into phase a: r", ""),
    ],
)
def test_transitions_in_words(
    before: tuple[str, str | None], after: tuple[str, str | None], sentence: str, line: str
) -> None:
    moved = ConversationMoved(before[0], after[0], before[1], after[1], "r")
    envelope = Envelope(sender_id="hub", event_type=EV_CONVERSATION_MOVED, event_data=plain_data(moved))
    assert (describe_envelope(envelope), notice_line(moved)) == (sentence, line)
