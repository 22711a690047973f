"""Tables of steps that cannot work: each is refused where the agent is made, with the value and the fix."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon import END, Agent, Progress, ScriptedModel, Step, Steps, UsageError
from antiphon.agents.steps import Exit
from antiphon.core.text import describe

Patcher = Callable[[Steps], Steps]


def ann(patcher: Patcher) -> Agent:
    return Agent("ann", ScriptedModel([]), patcher=patcher)


def mark(progress: Progress) -> None:
    """Changes nothing."""


def never(progress: Progress) -> bool:
    return False


def always(progress: Progress) -> bool:
    return True


async def slowly(progress: Progress) -> bool:
    return True


def broken(steps: Steps) -> Steps:
    raise KeyError("call_the_model")


async def slow(steps: Steps) -> Steps:
    return steps


def written(*exits: object, name: str = "mark", function: object = mark) -> Patcher:
    """A table to which a user has added a row by hand."""
    row = Step(name, function, exits)  # type: ignore[arg-type]
    return lambda steps: Steps((*steps.rows, row))


NO_STEP = "there are: render_system_prompt, current_active_agent, continue_conversation, call_model, call_tools"
NAMED = "give Step('name', function) with a letter, then up to 47 letters, digits or '_'"
GIVEN = "return the table of steps that it was given"


@pytest.mark.parametrize(
    ("patcher", "told"),
    [
        (lambda s: s.insert_before("call_models", mark), f"there is no step 'call_models'; {NO_STEP}"),
        (lambda s: s.insert_after("", mark), f"there is no step ''; {NO_STEP}"),
        (lambda s: s.replace("match_intents", mark), f"there is no step 'match_intents'; {NO_STEP}"),
        (lambda s: s.branch(None, always, END), f"there is no step None; {NO_STEP}"),
        (lambda s: s.branch("end", always, END), f"there is no step 'end'; {NO_STEP}"),
    ],
)
def test_a_step_that_is_not_there(patcher: Patcher, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        ann(patcher)
    assert str(refused.value) == told


@pytest.mark.parametrize(
    ("patcher", "told"),
    [
        (
            lambda s: s.branch("call_model", always, "nowhere"),
            f"the step 'call_model' of 'ann' leads to 'nowhere'; {NO_STEP}, end",
        ),
        (lambda s: s.branch("call_model", always, mark), "of 'ann' leads to <function mark"),
        (lambda s: s.branch("call_model", True, END), "when is True; give a function of the progress, not async"),
        (lambda s: s.branch("call_model", None, END), "when is None; give a function of the progress, not async"),
        (lambda s: s.branch("call_model", slowly, END), "when is <function slowly"),
        (
            lambda s: s.insert_before("call_model", Step("mark", mark, (Exit(END),))),
            "no way leads to the step 'call_model' of 'ann'; let a branch lead there, or drop it",
        ),
        (written(Exit(END)), "no way leads to the step 'mark' of 'ann'; let a branch lead there, or drop it"),
        (
            lambda s: written(Exit("mark"))(s.branch("call_model", never, "mark")),
            "from the step 'mark' of 'ann' no way leads to the end; add a branch to END",
        ),
        (
            lambda s: written(Exit("mark"), Exit(END))(s.branch("call_model", never, "mark")),
            "from the step 'mark' of 'ann' no way leads to the end; add a branch to END",
        ),
        (written(), "the step 'mark' of 'ann' may have no way out; its last exit takes no condition"),
        (written(Exit(END, never)), "the step 'mark' of 'ann' may have no way out"),
        (written(Exit("nowhere")), f"the step 'mark' of 'ann' leads to 'nowhere'; {NO_STEP}, mark, end"),
        (written(END), "exits of the step 'mark' of 'ann' is ('end',); give (Exit('step', when),)"),
        (written(Exit(END, slowly), Exit(END)), "exits of the step 'mark' of 'ann' is (Exit("),
        (lambda s: Steps((Step("mark", mark, 7), *s.rows)), "exits of the step 'mark' of 'ann' is 7"),
    ],
)
def test_a_way_that_leads_nowhere_or_never_ends(patcher: Patcher, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        ann(patcher)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("patcher", "told"),
    [
        (
            lambda s: s.insert_before("call_model", mark).insert_after("call_tools", mark),
            "there are two steps called 'mark'; give the new one another name: Step('…', function)",
        ),
        (lambda s: s.insert_before("call_tools", Step("call_model", mark)), "two steps called 'call_model'"),
        (written(Exit(END), name="call_model"), "two steps called 'call_model'; give the new one another name"),
        (written(Exit(END), name="a b"), f"a step cannot be called 'a b'; {NAMED}"),
        (lambda s: s.insert_before("call_model", lambda progress: None), f"called '<lambda>'; {NAMED}"),
        (
            written(Exit(END), function=None),
            "the step 'mark' of 'ann' does nothing; give it a function of the progress",
        ),
        (written(Exit(END), function="mark"), "the step 'mark' of 'ann' does nothing; give it a function"),
        (
            lambda s: s.insert_before("call_model", "mark"),
            "'mark' is no step; give a function of the progress, or Step",
        ),
        (lambda s: s.insert_after("call_model", None), "None is no step; give a function of the progress"),
        (lambda s: s.replace("call_model", Progress), "is no step; give a function of the progress"),
        (lambda s: s.insert_before("call_model", Step("mark")), "the step 'mark' has no function; give a function"),
        (lambda s: s.insert_before("call_model", Step("mark", 7)), "the step 'mark' has no function"),  # type: ignore[arg-type]
        (lambda s: s.insert_after("call_tools", s.step("call_model")), "the step 'call_model' has no function"),
        (
            lambda s: s.insert_after("call_tools", Step("both", mark, (), s.rows[0].work)),
            "the step 'both' has no function",
        ),
    ],
)
def test_what_is_no_step_or_one_too_many(patcher: Patcher, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        ann(patcher)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("patcher", "told"),
    [
        (lambda s: None, f"the patcher of 'ann' returned None; {GIVEN}"),
        (lambda s: s.names, "the patcher of 'ann' returned ['render_system_prompt', "),
        (lambda s: Steps(()), f"the patcher of 'ann' returned Steps(rows=()); {GIVEN}"),
        (lambda s: Steps(("mark",)), f"the patcher of 'ann' returned Steps(rows=('mark',)); {GIVEN}"),
        (slow, "the patcher of 'ann' returned <coroutine object slow"),
        (broken, "the patcher of 'ann' raised KeyError: 'call_the_model'; let it return the table of steps"),
        (lambda: None, "the patcher of 'ann' raised TypeError"),
        (7, "patcher of 'ann' is 7; give a function of the steps"),
    ],
)
def test_a_patcher_that_gives_no_table(patcher: Patcher, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        ann(patcher)
    assert told in str(refused.value)


def test_what_a_patcher_refuses_itself_is_told_in_its_own_words() -> None:
    mine = UsageError("no patcher today")

    def refuses(steps: Steps) -> Steps:
        raise mine

    with pytest.raises(UsageError) as refused:
        ann(refuses)
    assert refused.value is mine


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a-b", "7up", "_mark", "é", "end", "END", "a" * 49, "mark\n", None, 7], ids=repr
)
def test_what_is_no_name_of_a_step(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        ann(lambda steps: steps.insert_before("call_model", Step(name, mark)))
    assert str(refused.value) == f"a step cannot be called {describe(name)}; {NAMED}"


@pytest.mark.parametrize("name", ["a", "A_1", "a" * 48, "ends", "call_model_"])
def test_what_is_one(name: str) -> None:
    assert name in ann(lambda steps: steps.insert_before("call_model", Step(name, mark))).steps.names
