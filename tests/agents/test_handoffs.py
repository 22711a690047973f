"""Handovers inside a team, played by hand: who becomes active, what each call is told, and where it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Agent, Finish, Handoff, Intent, Limits, Progress, Reply, ScriptedModel, Steps, says, tool
from antiphon.agents.call_results import Call, ToolResult
from antiphon.agents.loop import TurnResult
from antiphon.agents.messages import Answered
from antiphon.agents.team import HandoffRefusal
from tests.agents.played_turn import Play, alone, play, there

MODEL = ScriptedModel([])
NAMES = ["look", "pay", "show", "pass_on", "quit"]


def agent(name: str, *below: Agent, **options: object) -> Agent:
    def anything() -> None: ...

    tools = [tool(anything, name=each, return_direct=each == "show") for each in NAMES]
    return Agent(**{"name": name, "model": MODEL, "agents": below, "tools": tools, **options})


def asks(*names: str, text: str = "") -> Reply:
    """A message that asks for these, in this order."""
    reasons = {"request_help": {"reason": "I am stuck."}}
    return Reply(text, tuple(Call(name, reasons.get(name, {}), f"c{place}") for place, name in enumerate(names)))


TO_BILLING, TO_TAX, TO_LEGAL = (f"transfer_to_{name}" for name in ("billing", "tax", "legal"))
HELP = "request_help"
SUPPORT = agent("support", agent("billing", agent("tax")), agent("legal"))
DONE = ToolResult("Finished: done.", finish=Finish("done"))


def handed(target: str) -> dict[str, ToolResult]:
    return {"pass_on": ToolResult(f"Handed off to {target}.", handoff=Handoff(target, "why", "Over to you."))}


def told(played: Play) -> list[tuple[str, str, bool]]:
    """What every call of the turn came to, as whoever is asked last is told it."""
    answers = [each for each in played.requests[-1].exchange if isinstance(each, Answered)]
    return [(each.call.name, each.text, each.failed) for each in answers]


TRANSFERRED = (TO_BILLING, "Conversation transferred to billing.", False)


# One after the other


@pytest.mark.parametrize(
    ("replies", "trace", "path"),
    [
        ([asks(TO_BILLING)], ["ask support", TO_BILLING, "enter billing", "ask billing"], ("billing",)),
        (
            [asks(TO_BILLING), asks(TO_TAX)],
            ["ask support", TO_BILLING, "enter billing", "ask billing", TO_TAX, "enter tax", "ask tax"],
            ("billing", "tax"),
        ),
        (
            [asks(TO_BILLING), asks(HELP)],
            ["ask support", TO_BILLING, "enter billing", "ask billing", HELP, "enter support", "ask support"],
            (),
        ),
        (
            [asks("look"), asks(TO_LEGAL), asks("pay", "look")],
            ["ask support", "look", "ask support", TO_LEGAL, "enter legal", "ask legal", "pay", "look", "ask legal"],
            ("legal",),
        ),
        (
            [asks(TO_LEGAL), asks(HELP), asks(TO_BILLING)],
            [
                *["ask support", TO_LEGAL, "enter legal", "ask legal", HELP],
                *["enter support", "ask support", TO_BILLING, "enter billing", "ask billing"],
            ],
            ("billing",),
        ),
    ],
)
def test_who_is_asked_next(replies: list[Reply], trace: list[str], path: tuple[str, ...]) -> None:
    played = play(SUPPORT, *replies, says("So."))
    assert played.trace == ["enter support", *trace]
    assert played.said == TurnResult(
        "So.", tools=tuple(call.name for reply in replies for call in reply.calls), path=path
    )


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_help_comes_from_the_one_right_above(depth: int) -> None:
    names = ["a0", "a1", "a2", "a3", "a4"][: depth + 1]
    lead = agent(names[-1])
    for name in reversed(names[:-1]):
        lead = agent(name, lead)
    played = play(lead, asks(HELP), says("So."), last_active=tuple(names[1:]))
    assert played.trace == [
        f"enter a{depth}",
        f"ask a{depth}",
        HELP,
        f"enter a{depth - 1}",
        f"ask a{depth - 1}",
    ]
    assert told(played) == [(HELP, "I am stuck.", False)]
    assert played.said.path == tuple(names[1:-1])


def test_help_is_handed_up_one_by_one_and_down_again() -> None:
    lead = agent("a0", agent("a1", agent("a2", agent("a3"))), limits=Limits(handoffs=6))
    replies = [asks(HELP)] * 3 + [asks(f"transfer_to_a{level}") for level in (1, 2, 3)]
    played = play(lead, *replies, says("So."), heard="@a3 go")
    assert [word for word in played.trace if word.startswith("ask")] == [
        f"ask a{level}" for level in (3, 2, 1, 0, 1, 2, 3)
    ]
    assert played.said.path == ("a1", "a2", "a3")


def test_positions_go_on_whoever_is_active() -> None:
    played = play(SUPPORT, asks(TO_BILLING, "look"), asks(TO_TAX), asks(HELP), says("So."))
    assert played.positions == [0, 0, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7]


# Several in one message


@pytest.mark.parametrize(
    ("names", "results", "answers", "who"),
    [
        (
            [TO_BILLING, TO_LEGAL],
            {},
            [TRANSFERRED, (TO_LEGAL, "Ignored: the turn goes to billing.", True)],
            "billing",
        ),
        (
            [TO_LEGAL, TO_BILLING, TO_LEGAL],
            {},
            [
                (TO_LEGAL, "Conversation transferred to legal.", False),
                (TO_BILLING, "Ignored: the turn goes to legal.", True),
                (TO_LEGAL, "Ignored: the turn goes to legal.", True),
            ],
            "legal",
        ),
        (
            ["look", TO_BILLING, "pay"],
            {},
            [("look", "look done", False), TRANSFERRED, ("pay", "pay done", False)],
            "billing",
        ),
        (
            [TO_BILLING, "pay"],
            {"pay": ToolResult("No money.", failed=True)},
            [TRANSFERRED, ("pay", "No money.", True)],
            "billing",
        ),
        (["show", TO_BILLING], {}, [("show", "show done", False), TRANSFERRED], "billing"),
        (
            [TO_LEGAL, TO_BILLING],
            {TO_LEGAL: ToolResult("The arguments do not fit.", failed=True)},
            [(TO_LEGAL, "The arguments do not fit.", True), TRANSFERRED],
            "billing",
        ),
        (
            ["pass_on", TO_BILLING],
            handed("nobody"),
            [("pass_on", "Nobody called nobody is here.", True), TRANSFERRED],
            "billing",
        ),
        (
            ["pass_on", TO_BILLING],
            handed("legal"),
            [("pass_on", "Handed off to legal.", False), (TO_BILLING, "Ignored: the turn goes to legal.", True)],
            "legal",
        ),
        (
            [TO_BILLING, "pass_on"],
            handed("nobody"),
            [TRANSFERRED, ("pass_on", "Ignored: the turn goes to billing.", True)],
            "billing",
        ),
    ],
)
def test_the_first_that_is_possible_wins_and_all_are_told(
    names: list[str], results: dict[str, ToolResult], answers: list[tuple[str, str, bool]], who: str
) -> None:
    played = play(SUPPORT, asks(*names), says("So."), results=results)
    assert told(played) == answers
    assert played.trace == ["enter support", "ask support", *names, f"enter {who}", f"ask {who}"]
    assert played.said.path == (who,)


@pytest.mark.parametrize("names", [[TO_BILLING, "quit"], ["quit", TO_BILLING], ["quit", "show", TO_BILLING]])
def test_to_finish_wins_over_a_handover(names: list[str]) -> None:
    played = play(SUPPORT, asks(*names, text="Bye."), results={"quit": DONE})
    assert played.said == TurnResult("Bye.", finish="done", tools=tuple(names))


def test_what_a_sub_agent_finishes_is_finished_in_its_name() -> None:
    played = play(SUPPORT, asks(TO_BILLING), asks("quit"), results={"quit": DONE})
    assert played.said == TurnResult("done", finish="done", tools=(TO_BILLING, "quit"), path=("billing",))


def test_a_direct_result_of_a_sub_agent_is_the_answer() -> None:
    played = play(SUPPORT, asks(TO_BILLING), asks("show"))
    assert played.said == TurnResult("show done", tools=(TO_BILLING, "show"), path=("billing",))


# What a user's tool hands over to


@pytest.mark.parametrize(
    ("last_active", "target", "path"),
    [
        ((), "billing", ("billing",)),
        ((), "legal", ("legal",)),
        (("billing",), "tax", ("billing", "tax")),
        (("billing",), "support", ()),
        (("billing", "tax"), "billing", ("billing",)),
        (("legal",), "support", ()),
        (("billing", "tax"), "support", ()),
    ],
)
@pytest.mark.parametrize("refusal", [alone, there])
def test_a_handoff_to_somebody_right_below_or_anybody_above_stays_in_the_turn(
    last_active: tuple[str, ...], target: str, path: tuple[str, ...], refusal: HandoffRefusal
) -> None:
    played = play(
        SUPPORT, asks("pass_on"), says("So."), results=handed(target), last_active=last_active, refusal=refusal
    )
    assert played.trace[-2:] == [f"enter {target}", f"ask {target}"]
    assert told(played) == [("pass_on", f"Handed off to {target}.", False)]
    assert played.said == TurnResult("So.", tools=("pass_on",), path=path)


@pytest.mark.parametrize(
    ("last_active", "target"),
    [((), "tax"), ((), "nobody"), (("billing",), "legal"), (("billing", "tax"), "legal")],
)
def test_a_handoff_to_anybody_else_leaves_the_team_or_is_refused(last_active: tuple[str, ...], target: str) -> None:
    gone = play(SUPPORT, asks("pass_on"), results=handed(target), last_active=last_active, refusal=there)
    assert gone.said == TurnResult(
        "Over to you.", handoff=Handoff(target, "why", "Over to you."), tools=("pass_on",), path=last_active
    )
    kept = play(SUPPORT, asks("pass_on"), says("So."), results=handed(target), last_active=last_active)
    assert told(kept) == [("pass_on", f"Nobody called {target} is here.", True)]
    assert kept.said == TurnResult("So.", tools=("pass_on",), path=last_active)


def test_a_handoff_in_another_case_goes_to_the_channel_first_then_to_the_team() -> None:
    gone = play(SUPPORT, asks("pass_on"), results=handed("Billing"), refusal=there)
    assert (gone.said.handoff, gone.said.path) == (Handoff("Billing", "why", "Over to you."), ())
    kept = play(SUPPORT, asks("pass_on"), says("So."), results=handed("Billing"))
    assert kept.said == TurnResult("So.", tools=("pass_on",), path=("billing",))


def test_a_turn_that_is_given_away_need_not_have_the_shape_that_is_wanted() -> None:
    lead = agent("support", agent("billing"), output=int)
    given = play(lead, asks("pass_on"), results=handed("carol"), refusal=there).said
    assert (given.text, given.stopped) == ("Over to you.", None)
    finished = play(lead, asks("quit"), results={"quit": DONE}).said
    assert (finished.text, finished.stopped) == ("done", "invalid_output")
    assert play(lead, asks("quit", text="7"), results={"quit": DONE}).said.stopped is None


def test_somebody_who_is_not_there_cannot_be_turned_to() -> None:
    strange = {"pass_on": ToolResult("Over.", transfer="nobody")}
    assert told(play(SUPPORT, asks("pass_on"), says("So."), results=strange)) == [
        ("pass_on", "There is no nobody to turn to.", True)
    ]


# How often


def passing(count: int) -> list[Reply]:
    """The two of a team pass the turn on, so often."""
    return [asks(HELP if place % 2 else TO_BILLING, text=f"{place}.") for place in range(count)]


def enough(most: int) -> str:
    there = "has been 1 handoff" if most == 1 else f"have been {most} handoffs"
    return f"There {there} in this turn, the limit; answer yourself."


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_only_so_many_handovers_in_one_turn(most: int) -> None:
    lead = agent("support", agent("billing", limits=Limits(handoffs=9)), limits=Limits(handoffs=most))
    last = ("billing",) if most % 2 else ()
    names = tuple(HELP if place % 2 else TO_BILLING for place in range(most + 2))

    kept = play(lead, *passing(most), says("So."))
    assert kept.said == TurnResult("So.", tools=names[:most], path=last)

    refused = play(lead, *passing(most + 1), says("So."))
    assert told(refused)[-1] == (names[most], enough(most), True)
    assert [failed for *_, failed in told(refused)] == [False] * most + [True]
    assert refused.said == TurnResult("So.", tools=names[: most + 1], path=last)

    insists = [*passing(most + 1), asks(names[most], text="Again.")]
    stopped = play(lead, *insists)
    assert stopped.said == TurnResult("Again.", "max_handoffs", tools=(*names[: most + 1], names[most]), path=last)
    assert len(stopped.requests) == most + 2


def test_who_was_refused_may_do_something_else_before_it_insists() -> None:
    lead = agent("support", agent("billing"), limits=Limits(handoffs=0))
    played = play(lead, asks(TO_BILLING, text="One."), asks("look"), asks(TO_BILLING, "look"))
    assert played.said == TurnResult("One.", "max_handoffs", tools=(TO_BILLING, "look", TO_BILLING, "look"))
    assert play(lead, asks(TO_BILLING), asks("show", TO_BILLING)).said.stopped == "max_handoffs"
    finished = play(lead, asks(TO_BILLING), asks("quit", TO_BILLING), results={"quit": DONE}).said
    assert (finished.finish, finished.stopped) == ("done", None)


def test_several_that_are_refused_at_once_are_one_refusal() -> None:
    lead = agent("support", agent("billing"), agent("legal"), limits=Limits(handoffs=0))
    played = play(lead, asks(TO_BILLING, TO_LEGAL), says("So."))
    assert told(played) == [(TO_BILLING, enough(0), True), (TO_LEGAL, enough(0), True)]
    assert played.said.stopped is None


def test_who_may_hand_over_no_more_can_still_leave_the_team() -> None:
    lead = agent("support", agent("billing"), limits=Limits(handoffs=0))
    played = play(lead, asks(TO_BILLING, "pass_on"), results=handed("carol"), refusal=there)
    assert played.said.handoff == Handoff("carol", "why", "Over to you.")


def test_routing_is_no_handover() -> None:
    lead = agent("support", agent("billing"), limits=Limits(handoffs=0))
    assert play(lead, says("So."), heard="@billing hi").said == TurnResult("So.", path=("billing",))
    assert play(lead, says("So."), last_active=("billing",)).said == TurnResult("So.", path=("billing",))


def test_an_intent_that_hands_over_is_a_handover_too() -> None:
    lead = agent("support", agent("billing"), intents=[Intent("bill", agent="billing")], limits=Limits(handoffs=0))
    played = play(lead, says("So."), heard="Bill!")
    assert told(played) == [(TO_BILLING, enough(0), True)]
    assert played.said.path == ()


# The tables of those who become active


def settles_nothing(progress: Progress) -> None: ...


def marked(name: str) -> object:
    def mark(progress: Progress) -> None: ...

    mark.__name__ = f"at_{name}"
    return lambda steps: steps.insert_before("render_system_prompt", mark)


def test_everybody_goes_by_a_table_of_its_own_from_its_beginning() -> None:
    lead = agent("support", agent("billing", patcher=marked("billing")), patcher=marked("support"))
    played = play(lead, asks(TO_BILLING), asks(HELP), says("So."))
    assert [word for word in played.trace if not word.startswith("ask")] == [
        *["at_support", "enter support", TO_BILLING, "at_billing", "enter billing", HELP],
        *["at_support", "enter support"],
    ]


def test_what_was_called_beside_a_handover_is_not_called_again() -> None:
    greeted = [Intent("hi", answer="Hello.")]
    lead = agent("support", agent("billing", intents=greeted), intents=greeted)
    played = play(lead, asks("pay", TO_BILLING), asks("pay", HELP), says("So."), heard="Pay.")
    assert [word for word in played.trace if word == "pay"] == ["pay", "pay"]
    assert played.trace == [
        *["enter support", "ask support", "pay", TO_BILLING, "enter billing", "ask billing", "pay", HELP],
        *["enter support", "ask support"],
    ]


@pytest.mark.parametrize(
    "patcher",
    [
        lambda steps: steps.replace("current_active_agent", settles_nothing),
        lambda steps: steps.branch("render_system_prompt", lambda progress: True, "continue_conversation"),
    ],
)
def test_a_handover_counts_also_where_the_lead_settles_by_itself_who_is_asked(patcher: object) -> None:
    lead = agent("support", agent("billing"), patcher=patcher)
    played = play(lead, asks(TO_BILLING), says("So."))
    assert played.trace[-2:] == ["enter billing", "ask billing"]
    assert played.trace.count("ask support") == 1
    assert played.said.path == ("billing",)


def test_notes_are_handed_on_with_the_turn() -> None:
    seen: list[object] = []

    def notes(steps: Steps) -> Steps:
        def note(progress: Progress) -> Progress:
            seen.append((progress.agent, progress.notes))
            return progress.replace(notes={**progress.notes, progress.agent: progress.lead})

        return steps.insert_before("call_model", note)

    play(agent("support", agent("billing", patcher=notes), patcher=notes), asks(TO_BILLING), says("So."))
    assert seen == [("support", {}), ("billing", {"support": None})]


# Laws


@given(st.lists(st.sampled_from(["down", "up", "tool"]), max_size=8), st.integers(0, 3))
def test_whoever_is_asked_is_where_the_handovers_lead(moves: list[str], depth: int) -> None:
    """However the turn is passed up and down, as many times as it may be."""
    names = [f"a{level}" for level in range(4)]
    lead = agent(names[-1])
    for name in reversed(names[:-1]):
        lead = agent(name, lead, limits=Limits(handoffs=8))
    at, replies, expected = depth, [], [names[depth]]
    for move in moves:
        if move == "down" and at < 3:
            at += 1
            replies.append(asks(f"transfer_to_{names[at]}"))
        elif move == "up" and at:
            at -= 1
            replies.append(asks(HELP))
        else:
            replies.append(asks("look"))
        expected.append(names[at])
    played = play(lead, *replies, says("So."), last_active=tuple(names[1 : depth + 1]))
    assert [word.removeprefix("ask ") for word in played.trace if word.startswith("ask ")] == expected
    assert played.said.path == tuple(names[1 : at + 1])
    assert [len(request.exchange) for request in played.requests] == [2 * place for place in range(len(expected))]
