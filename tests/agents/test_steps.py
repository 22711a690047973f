"""The steps of a turn as a table: what it is, how it is changed, what is refused, and how a turn goes by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import (
    END,
    Agent,
    Intent,
    Limits,
    Progress,
    Reply,
    ScriptedModel,
    Step,
    Steps,
    Usage,
    calls,
    says,
)
from antiphon.agents.loop import (
    DEFAULT_STEPS,
    MAX_EXTRA_STEPS,
    STEPS_PER_MODEL_CALL,
    TurnResult,
    take_turn,
    with_intents,
)
from antiphon.agents.messages import Answered, Asked
from antiphon.agents.progress import AskModel, PreparedPrompt, PreparePrompt
from antiphon.agents.steps import Exit, check_steps
from tests.agents.played_turn import DAY, HISTORY, play

NAMES = ["render_system_prompt", "current_active_agent", "continue_conversation", "call_model", "call_tools"]
SIX = with_intents(DEFAULT_STEPS)
LOOK = calls("look")
HELLO = Intent("hi", answer="Hello.")

Patcher = Callable[[Steps], Steps]


def look() -> str:
    """Look around."""
    return "a cat"


def ann(patcher: Patcher | None = None, **options: object) -> Agent:
    options = {"tools": [look], "without": ["current_date"], **options}
    return Agent("ann", ScriptedModel([]), "Be kind.", patcher=patcher, **options)  # type: ignore[arg-type]


def mark(progress: Progress) -> None:
    """Changes nothing."""


def other(progress: Progress) -> None:
    """Changes nothing either."""


async def wait(progress: Progress) -> None:
    """Changes nothing, in its own time."""


def answer(progress: Progress) -> Progress:
    return progress.replace(answer="Mine.")


def louder(progress: Progress) -> Progress | None:
    return None if progress.answer is None else progress.replace(answer=progress.answer.upper())


def longer(progress: Progress) -> Progress | None:
    return None if progress.answer is None else progress.replace(answer=f"{progress.answer} Indeed.")


def is_short(progress: Progress) -> bool:
    return len(progress.answer or "") < 4


def never(progress: Progress) -> bool:
    return False


def always(progress: Progress) -> bool:
    return True


# The table as a value


def test_the_steps_of_an_agent() -> None:
    assert ann().steps.names == NAMES
    with_one = ann(intents=[Intent("hours", answer="9 to 5")]).steps
    assert with_one.names == [*NAMES[:2], "match_intents", *NAMES[2:]]
    assert with_one == SIX


@pytest.mark.parametrize("name", SIX.names)
def test_a_step_may_stand_before_and_after_every_other(name: str) -> None:
    at = SIX.names.index(name)
    assert SIX.insert_before(name, mark).names == [*SIX.names[:at], "mark", *SIX.names[at:]]
    assert SIX.insert_after(name, mark).names == [*SIX.names[: at + 1], "mark", *SIX.names[at + 1 :]]
    assert SIX.replace(name, mark).names == SIX.names
    assert SIX.replace(name, mark).step(name).function is mark
    assert SIX.branch(name, never, END).names == SIX.names
    for steps in (SIX.insert_before(name, mark), SIX.insert_after(name, mark), SIX.replace(name, mark)):
        assert check_steps(steps, "ann") is steps


def test_to_change_a_table_is_to_make_another() -> None:
    for make in (
        lambda: DEFAULT_STEPS.insert_before("call_model", mark),
        lambda: DEFAULT_STEPS.insert_after("call_model", mark),
        lambda: DEFAULT_STEPS.replace("call_model", mark),
        lambda: DEFAULT_STEPS.branch("call_model", never, END),
    ):
        assert make() == make()
        assert make() != DEFAULT_STEPS
    assert DEFAULT_STEPS.names == NAMES
    assert [step.work for step in DEFAULT_STEPS.rows].count(None) == 0


def test_a_step_is_named_by_its_function_or_by_hand() -> None:
    class Method:
        def check(self, progress: Progress) -> None: ...

    named = [mark, wait, Method().check, Step("of_its_own", lambda progress: None)]
    assert [DEFAULT_STEPS.insert_before("call_model", step).names[3] for step in named] == [
        "mark",
        "wait",
        "check",
        "of_its_own",
    ]


def test_a_table_as_a_picture() -> None:
    steps = DEFAULT_STEPS.insert_after("call_model", mark).insert_before("call_model", answer)
    steps = steps.branch("mark", is_short, "answer").branch("answer", lambda progress: False, END)
    assert steps.to_mermaid().splitlines() == [
        "flowchart TD",
        "    render_system_prompt --> current_active_agent",
        "    current_active_agent --> continue_conversation",
        "    continue_conversation --> answer",
        "    answer -->|if| END([end])",
        "    answer -->|answered| END([end])",
        "    answer --> call_model",
        "    call_model --> mark",
        "    mark -->|is_short| answer",
        "    mark -->|answered| END([end])",
        "    mark -->|calls| call_tools",
        "    mark --> answer",
        "    call_tools -->|answered| END([end])",
        "    call_tools --> answer",
    ]


# How a turn goes by it


def marked(steps: Steps) -> Steps:
    """A table in which every step is told of before it is taken."""
    for name in steps.names:
        steps = steps.insert_before(name, Step(f"at_{name}", mark))
    return steps


def visited(agent: Agent, *replies: Reply, heard: str | None = None) -> list[str]:
    trace = play(agent, *replies, heard=heard).trace
    return [name.removeprefix("at_") for name in trace if name.startswith("at_")]


def test_a_turn_visits_its_steps_in_the_order_of_the_table() -> None:
    assert visited(ann(marked), says("So.")) == NAMES[:4]
    assert visited(ann(marked), LOOK, LOOK, says("So.")) == [*NAMES, "call_model", "call_tools", "call_model"]
    hours = [Intent("hours", answer="9 to 5"), Intent("look", tool="look")]
    assert visited(ann(marked, intents=hours), heard="Hours?") == SIX.names[:3]
    assert visited(ann(marked, intents=hours), says("So."), heard="Who?") == SIX.names[:5]
    assert visited(ann(marked, intents=hours), says("So."), heard="look") == [
        *SIX.names[:3],
        "call_tools",
        "call_model",
    ]


ASKED = ["enter ann", "ask ann"]
REPEATED = (Exit("call_model", is_short),)


@pytest.mark.parametrize(
    ("patcher", "replies", "trace", "text"),
    [
        pytest.param(lambda s: s, [says("So.")], ASKED, "So.", id="as it was"),
        pytest.param(
            lambda s: s.insert_before("render_system_prompt", mark),
            [says("So.")],
            ["mark", "enter ann", "ask ann"],
            "So.",
            id="before the first",
        ),
        pytest.param(
            lambda s: s.insert_after("call_tools", mark),
            [LOOK, says("So.")],
            [*ASKED, "look", "mark", "ask ann"],
            "So.",
            id="after the last",
        ),
        pytest.param(
            lambda s: s.insert_before("call_model", mark).insert_before("mark", other).insert_after("mark", wait),
            [says("So.")],
            ["enter ann", "other", "mark", "wait", "ask ann"],
            "So.",
            id="a chain before the model",
        ),
        pytest.param(
            lambda s: s.insert_after("call_model", longer).insert_after("call_model", louder),
            [LOOK, says("So.")],
            [*ASKED, "louder", "longer", "look", "ask ann", "louder", "longer"],
            "SO. Indeed.",
            id="a chain after the model: all of it sees the answer",
        ),
        pytest.param(
            lambda s: s.insert_after("call_model", longer).insert_before("longer", louder),
            [says("So.")],
            [*ASKED, "louder", "longer"],
            "SO. Indeed.",
            id="before one that sees the answer",
        ),
        pytest.param(
            lambda s: s.insert_after("call_model", louder).insert_after("louder", longer),
            [says("So.")],
            [*ASKED, "louder", "longer"],
            "SO. Indeed.",
            id="after one that changes the answer",
        ),
        pytest.param(
            lambda s: s.insert_before("call_model", answer), [], ["enter ann", "answer"], "Mine.", id="in its place"
        ),
        pytest.param(
            lambda s: s.insert_after("continue_conversation", answer),
            [],
            ["enter ann", "answer"],
            "Mine.",
            id="in its place, after another",
        ),
        pytest.param(
            lambda s: s.insert_before("call_model", mark).insert_after("mark", longer).replace("mark", answer),
            [],
            ["enter ann", "mark", "longer"],
            "Mine. Indeed.",
            id="instead of one's own, and what comes after it stays",
        ),
        pytest.param(
            lambda s: s.insert_before("call_model", mark).insert_before("mark", answer),
            [],
            ["enter ann", "answer"],
            "Mine.",
            id="an answer ends the turn before the next step",
        ),
        pytest.param(
            lambda s: s.insert_before("call_model", answer).insert_after("answer", longer),
            [],
            ["enter ann", "answer", "longer"],
            "Mine. Indeed.",
            id="after one that answers",
        ),
        pytest.param(
            lambda s: s.insert_after("call_tools", answer),
            [LOOK],
            [*ASKED, "look", "answer"],
            "Mine.",
            id="after tools",
        ),
        pytest.param(
            lambda s: s.branch("call_model", is_short, "call_model"),
            [says("No."), says("Nay.")],
            [*ASKED, "ask ann"],
            "Nay.",
            id="back to the model",
        ),
        pytest.param(
            lambda s: s.branch("call_model", is_short, "call_model").insert_before("call_model", mark),
            [says("No."), says("Nay.")],
            ["enter ann", "mark", "ask ann", "mark", "ask ann"],
            "Nay.",
            id="back to the model, and to what comes before it",
        ),
        pytest.param(
            lambda s: s.branch("call_model", is_short, "call_model").insert_after("call_model", mark),
            [says("No."), says("Nay.")],
            [*ASKED, "mark", "ask ann", "mark"],
            "Nay.",
            id="a branch goes along with what is inserted after it",
        ),
        pytest.param(
            lambda s: s.branch("call_model", is_short, "mark").insert_before("call_model", mark),
            [says("No."), says("Nay.")],
            ["enter ann", "mark", "ask ann", "mark", "ask ann"],
            "Nay.",
            id="to a step that is inserted later",
        ),
        pytest.param(lambda s: s.branch("continue_conversation", always, END), [], ["enter ann"], "", id="to the end"),
        pytest.param(
            lambda s: s.branch("continue_conversation", never, END), [says("So.")], ASKED, "So.", id="not to the end"
        ),
        pytest.param(
            lambda s: s.branch("continue_conversation", always, "call_tools"),
            [LOOK, says("So.")],
            [*ASKED, "look", "ask ann"],
            "So.",
            id="to the tools, when nobody asked for any",
        ),
        pytest.param(
            lambda s: s.branch("call_tools", always, "render_system_prompt"),
            [LOOK, says("So.")],
            [*ASKED, "look", *ASKED],
            "So.",
            id="back to the prompt",
        ),
        pytest.param(
            lambda s: s.replace("call_model", answer), [], ["enter ann", "call_model"], "Mine.", id="instead of a model"
        ),
        pytest.param(
            lambda s: s.insert_after("call_model", longer).replace("call_model", answer),
            [],
            ["enter ann", "call_model", "longer"],
            "Mine. Indeed.",
            id="instead of a model, and what comes after it stays",
        ),
        pytest.param(
            lambda s: s.replace("continue_conversation", answer),
            [],
            ["enter ann", "continue_conversation"],
            "Mine.",
            id="instead of nothing",
        ),
        pytest.param(
            lambda s: s.replace("continue_conversation", answer).replace("continue_conversation", mark),
            [says("So.")],
            ["enter ann", "continue_conversation", "ask ann"],
            "So.",
            id="instead of another of one's own",
        ),
        pytest.param(
            lambda s: s.branch("call_model", never, END).insert_after("call_model", Step("mark", mark, REPEATED)),
            [says("No."), says("Nay.")],
            [*ASKED, "mark", "ask ann", "mark"],
            "Nay.",
            id="with exits of its own, asked first",
        ),
        pytest.param(
            lambda s: s.branch("call_model", is_short, END).branch("call_model", is_short, "call_model"),
            [says("No."), says("Nay.")],
            [*ASKED, "ask ann"],
            "Nay.",
            id="of two branches the later is asked first",
        ),
    ],
)
def test_a_turn_by_a_changed_table(patcher: Patcher, replies: list[Reply], trace: list[str], text: str) -> None:
    played = play(ann(patcher), *replies)
    assert played.trace == trace
    assert played.said.text == text


@pytest.mark.parametrize(
    ("name", "replies", "trace", "said"),
    [
        ("render_system_prompt", [], ["enter ann"], TurnResult("", "empty_reply")),
        ("current_active_agent", [], ["enter ann"], TurnResult("", "empty_reply")),
        ("continue_conversation", [], ["enter ann"], TurnResult("", "empty_reply")),
        ("call_model", [says("So.")], ASKED, TurnResult("So.")),
        ("call_model", [LOOK], ASKED, TurnResult("", "empty_reply")),
        ("call_tools", [LOOK], [*ASKED, "look"], TurnResult("", "empty_reply", tools=("look",))),
    ],
)
def test_a_branch_to_the_end_from_every_step(
    name: str, replies: list[Reply], trace: list[str], said: TurnResult
) -> None:
    played = play(ann(lambda steps: steps.branch(name, always, END)), *replies)
    assert (played.trace, played.said) == (trace, said)


def test_a_step_after_the_model_sees_what_it_said_and_may_change_it() -> None:
    seen: list[tuple[str | None, Reply | None]] = []

    def reads(progress: Progress) -> Progress | None:
        seen.append((progress.answer, progress.reply))
        if progress.answer == "Wrong.":
            return progress.replace(answer=None, reply=LOOK)
        return None

    wrong = says("Wrong.")
    played = play(ann(lambda steps: steps.insert_after("call_model", reads)), wrong, says("So."))
    assert seen == [("Wrong.", wrong), ("So.", says("So."))]
    assert played.trace == [*ASKED, "reads", "look", "ask ann", "reads"]
    assert played.requests[1].exchange == (Asked("", LOOK.calls), Answered(LOOK.calls[0], "look done"))
    assert played.said == TurnResult("So.", tools=("look",))


def test_what_was_called_is_not_called_again_by_an_agent_with_intents() -> None:
    agent = ann(
        lambda steps: steps.branch("call_tools", always, "render_system_prompt"),
        intents=[HELLO],
    )
    played = play(agent, LOOK, says("So."), heard="Who?")
    assert played.trace == [*ASKED, "look", *ASKED]


def test_intents_are_matched_before_any_model_was_asked_and_only_then() -> None:
    def patched(steps: Steps) -> Steps:
        steps = steps.branch("current_active_agent", always, "continue_conversation")
        return steps.insert_after("call_model", forgets).branch("forgets", is_short, "match_intents")

    def forgets(progress: Progress) -> Progress | None:
        return progress.replace(answer=None) if is_short(progress) else None

    agent = ann(patched, intents=[HELLO])
    assert play(agent, says("No."), says("Nay."), heard="hi").said == TurnResult("Nay.")


# Positions, and steps without end


@pytest.mark.parametrize(
    ("step", "positions"),
    [(mark, [0, 0, 0, 1, 2, 2]), (wait, [0, 0, 1, 2, 3, 4])],
    ids=["plain", "async"],
)
def test_only_a_step_that_waits_has_a_position_of_its_own(
    step: Callable[[Progress], None], positions: list[int]
) -> None:
    """Enter, step, ask, tool, step, ask."""
    agent = ann(lambda steps: steps.insert_before("call_model", step))
    played = play(agent, LOOK, says("So."))
    assert [name for name in played.trace if name not in ("mark", "wait")] == [
        "enter ann",
        "ask ann",
        "look",
        "ask ann",
    ]
    assert played.positions == positions


def test_a_summary_has_a_position_and_is_paid_for() -> None:
    turn = take_turn(ann().team, Progress(("ann",)), DAY)
    assert next(turn) == PreparePrompt(0, ("ann",))
    asked = turn.send(PreparedPrompt("", HISTORY, "p", Reply(usage=Usage(5, 2))))
    assert isinstance(asked, AskModel)
    assert asked.index == 1
    with pytest.raises(StopIteration) as end:
        turn.send(says("So.", usage=Usage(10, 1)))
    assert end.value.value == TurnResult("So.", usage=Usage(15, 3))


def test_an_object_that_is_called_like_an_async_function_waits() -> None:
    class Waits:
        async def __call__(self, progress: Progress) -> Progress:
            return progress.replace(answer="Mine.")

    agent = ann(lambda steps: steps.insert_after("call_tools", Step("waits", Waits())))
    played = play(agent, LOOK)
    assert (played.positions, played.said.text) == ([0, 0, 1, 2], "Mine.")


def until(count: int, **options: object) -> Agent:
    """An agent that stands on one step until it has been there so often."""

    def stands(progress: Progress) -> Progress:
        return progress.replace(notes={"seen": int(str(progress.notes.get("seen", 0))) + 1})

    def patched(steps: Steps) -> Steps:
        steps = steps.insert_after("call_model", stands)
        return steps.branch("stands", lambda progress: progress.notes["seen"] < count, "stands")  # type: ignore[operator]

    return ann(patched, **options)


MOST = MAX_EXTRA_STEPS + STEPS_PER_MODEL_CALL * 2
BEFORE = 4
"""The steps up to the model."""


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, TurnResult("So.")),
        (MOST - BEFORE, TurnResult("So.")),
        (MOST - BEFORE + 1, TurnResult("So.", "max_steps")),
        (10**9, TurnResult("So.", "max_steps")),
    ],
)
def test_a_turn_takes_only_so_many_steps(count: int, said: TurnResult) -> None:
    played = play(until(count, limits=Limits(model_calls=2)), says("So."))
    assert played.said == said
    assert len(played.wanted) == 2 + min(count, MOST - BEFORE)


def test_a_turn_that_goes_round_keeps_the_limit_that_it_met_first() -> None:
    agent = ann(lambda steps: steps.branch("call_model", always, "call_model"), limits=Limits(model_calls=2))
    assert play(agent, says("No."), says("Nay.")).said == TurnResult("Nay.", "max_model_calls")


def test_a_turn_without_end_says_what_its_model_said_last() -> None:
    def forget(progress: Progress) -> Progress:
        return progress.replace(answer=None, reply=None)

    def patched(steps: Steps) -> Steps:
        return steps.insert_after("call_model", forget).branch("forget", always, "forget")

    assert play(ann(patched), says("So.")).said == TurnResult("So.", "max_steps")


# Laws

changes = st.lists(
    st.tuples(
        st.sampled_from(["before", "after", "replace", "branch"]), st.integers(0, 50), st.integers(0, 50), st.booleans()
    ),
    max_size=12,
)


@given(changes, st.booleans())
def test_every_table_made_of_valid_changes_leads_everywhere_and_to_its_end(
    script: list[tuple[str, int, int, bool]], intents: bool
) -> None:
    steps = SIX if intents else DEFAULT_STEPS
    for number, (what, at, to, waits) in enumerate(script):
        name = steps.names[at % len(steps.names)]
        new = Step(f"step_{number}", wait if waits else mark)
        match what:
            case "before":
                steps = steps.insert_before(name, new)
            case "after":
                steps = steps.insert_after(name, new)
            case "replace":
                steps = steps.replace(name, new)
            case _:
                steps = steps.branch(name, never, [*steps.names, END][to % (len(steps.names) + 1)])
    assert check_steps(steps, "ann") is steps
    assert len(set(steps.names)) == len(steps.names)
    for name in steps.names:
        assert f"    {name} -->" in steps.to_mermaid()
    if all(what != "replace" for what, *_ in script):
        played = play(ann(lambda _: steps, intents=[HELLO] if intents else []), LOOK, says("So."))
        assert played.said == TurnResult("So.", tools=("look",))
        assert [word for word in played.trace if not word.startswith("step_")] == [*ASKED, "look", "ask ann"]
        assert {f"step_{number}" for number, (what, *_) in enumerate(script) if what != "branch"} <= set(played.trace)
