"""What a step of a user's is handed, what it may change, and how it is run in a hub: once, or again, or not at all."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from datetime import date

import msgspec
import pytest

from antiphon import (
    Agent,
    Hub,
    Progress,
    Reply,
    ScriptedModel,
    Step,
    Steps,
    TurnFailed,
    Usage,
    UsageError,
    calls,
    says,
)
from antiphon.agents.call_results import Call, StepChanges
from antiphon.agents.loop import TurnResult
from antiphon.agents.messages import Answered, Asked
from antiphon.agents.progress import STEP_FIELDS, apply_changes, changes_between
from antiphon.core.codec import as_type, plain_data
from antiphon.core.execution_events import EV_CALL_FAILED, EV_CALL_FINISHED, EV_CALL_STARTED
from antiphon.core.views import Message
from antiphon.testing import ManualClock
from tests.agents.played_turn import HISTORY, play
from tests.support.crashing_hubs import Mind, crashes
from tests.support.waiting import wait_until

Function = Callable[[Progress], object]
BEFORE = Progress(
    ("ann", "bob"), "Hi.", system="Be kind.", history=HISTORY, past="p", reply=says("So."), answer="So.", notes={"a": 1}
)


def before_model(function: Function, name: str = "mine") -> Callable[[Steps], Steps]:
    return lambda steps: steps.insert_before("call_model", Step(name, function))  # type: ignore[arg-type]


def after_model(function: Function) -> Callable[[Steps], Steps]:
    return lambda steps: steps.insert_after("call_model", Step("mine", function))  # type: ignore[arg-type]


# What may be changed


def test_who_is_active() -> None:
    assert (BEFORE.agent, BEFORE.lead, BEFORE.messages) == ("bob", "ann", HISTORY)
    assert (Progress(("ann",)).agent, Progress(("ann",)).lead) == ("ann", None)


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"system": "Be brief."}, {"system": "Be brief."}),
        ({"history": [("user", "Hi."), ["assistant", "Ho."]]}, {"history": [["user", "Hi."], ["assistant", "Ho."]]}),
        ({"history": ()}, {"history": []}),
        ({"notes": {"b": [1, None, {"c": "é"}]}}, {"notes": {"b": [1, None, {"c": "é"}]}}),
        ({"notes": {}}, {"notes": {}}),
        ({"reply": None}, {"gone": ["reply"]}),
        ({"answer": None}, {"gone": ["answer"]}),
        ({"answer": None, "reply": None}, {"gone": ["reply", "answer"]}),
        ({"answer": ""}, {"answer": ""}),
        ({"system": "", "answer": "No."}, {"system": "", "answer": "No."}),
        ({"system": "Be kind.", "history": list(HISTORY), "notes": {"a": 1}, "answer": "So."}, {}),
        ({}, {}),
    ],
    ids=repr,
)
def test_what_a_step_may_change_is_kept_and_comes_back(changes: dict[str, object], kept: dict[str, object]) -> None:
    after = BEFORE.replace(**changes)
    recorded = plain_data(changes_between(BEFORE, after))
    assert recorded == kept
    again = apply_changes(BEFORE, as_type(recorded, StepChanges))
    assert msgspec.structs.replace(again, past="p") == after
    assert (again.past == "p") == ("history" not in kept)


def test_a_reply_may_be_given_as_a_model_gives_it() -> None:
    one, two = calls("look", {"at": 7}), calls("pay")
    assert BEFORE.replace(reply=[one, two]).reply == Reply("", (*one.calls, *two.calls))
    changes = changes_between(BEFORE, BEFORE.replace(reply=one))
    assert apply_changes(BEFORE, as_type(plain_data(changes), StepChanges)).reply == one


def test_other_histories_have_other_digests() -> None:
    texts = ["Hi.", "Ho.", "Hi."]
    one, two, three = (apply_changes(BEFORE, StepChanges(history=[Message("user", text)])).past for text in texts)
    assert one == three != two
    assert (
        apply_changes(msgspec.structs.replace(BEFORE, past="q"), StepChanges(history=[Message("user", "Hi.")])).past
        != one
    )


@pytest.mark.parametrize("name", [name for name in Progress.__struct_fields__ if name not in STEP_FIELDS] + ["sytem"])
def test_what_a_step_may_not_change(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        BEFORE.replace(**{name: None, "answer": "So."})
    assert str(refused.value) == (
        f"a step cannot change {name!r}; it can change: system, history, notes, reply, answer"
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"system": None}, "the system that a step gives is None; give a text"),
        ({"system": 7}, "the system that a step gives is 7; give a text"),
        (
            {"system": "\ud800"},
            "the system that a step gives cannot be recorded: a text contains half a surrogate",
        ),
        ({"answer": 7}, "the answer that a step gives is 7; give a text or None"),
        ({"answer": "a\x00"}, "the answer that a step gives cannot be recorded: a text contains a NUL character"),
        ({"history": None}, "the history that a step gives is None; give a list of (role, text) pairs"),
        ({"history": "Hi."}, "the history that a step gives is 'Hi.'; give a list of (role, text) pairs"),
        ({"history": ["Hi."]}, "the history that a step gives is ['Hi.']; give"),
        ({"history": [{"role": "user", "content": "Hi."}]}, "the history that a step gives is [{'role'"),
        ({"history": [("user", "Hi.", 7)]}, "the history that a step gives is [('user', 'Hi.', 7)]; give"),
        ({"history": [("user", 7)]}, "the history that a step gives is [('user', 7)]; give"),
        ({"notes": None}, "the notes that a step gives is None; give a dict"),
        ({"notes": [1]}, "the notes that a step gives is [1]; give a dict"),
        ({"notes": {"a": {1}}}, "the notes that a step gives cannot be recorded: set is no JSON value"),
        ({"notes": {"a": (1,)}}, "the notes that a step gives cannot be recorded: tuple is no JSON value"),
        ({"notes": {"a": date(2026, 1, 31)}}, "the notes that a step gives cannot be recorded: date is no JSON value"),
        ({"notes": {"a": float("nan")}}, "the notes that a step gives cannot be recorded: nan is no JSON number"),
        ({"notes": {7: 1}}, "the notes that a step gives cannot be recorded: a key is 7; keys must be text"),
        ({"reply": "So."}, "the reply that a step gives is 'So.'; give says(…), calls(…) or None"),
        ({"reply": [1]}, "the reply that a step gives is [1]; give says(…), calls(…) or None"),
        ({"reply": calls("look", {"at": {1}})}, "the reply that a step gives cannot be recorded: set is no JSON"),
    ],
    ids=repr,
)
def test_what_cannot_be_kept_is_refused_where_it_is_given(changes: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        BEFORE.replace(**changes)
    assert told in str(refused.value)


def test_what_a_step_does_to_the_lists_and_dicts_it_is_handed_changes_nothing() -> None:
    seen: list[Progress] = []

    def meddles(progress: Progress) -> Progress | None:
        seen.append(progress.detached())
        progress.notes["meddled"] = True
        progress.messages.clear()
        assert isinstance(progress.history, list)
        progress.history.clear()
        for call in progress.reply.calls if progress.reply is not None else ():
            call.args["at"] = 8
        return progress if progress.asked else None

    def patcher(steps: Steps) -> Steps:
        return before_model(meddles, "one")(steps).insert_after("call_model", Step("two", meddles))

    look = calls("look", {"at": 7}, call_id="c1")
    played = play(Agent("ann", ScriptedModel([]), patcher=patcher), look, look, says("So."))
    assert [progress.notes for progress in seen] == [{}] * len(seen)
    assert [request.history for request in played.requests] == [HISTORY] * 3
    assert played.requests[1].exchange == (Asked("", look.calls), Answered(Call("look", {"at": 7}, "c1"), "look done"))
    assert [Message("user", "What is there?")] == HISTORY


def test_steps_tell_each_other_something_in_notes() -> None:
    seen: list[object] = []

    def counts(progress: Progress) -> Progress:
        seen.append(progress.notes)
        return progress.replace(notes={**progress.notes, str(len(seen)): progress.asked})

    agent = Agent("ann", ScriptedModel([]), patcher=before_model(counts))
    assert play(agent, calls("x"), calls("x"), says("So.")).said.text == "So."
    assert seen == [{}, {"1": 0}, {"1": 0, "2": 1}]


@pytest.mark.parametrize(
    ("reply", "answer", "output", "said"),
    [
        (says(""), None, None, TurnResult("", "empty_reply")),
        (says(""), "Hm.", None, TurnResult("Hm.")),
        (says("So."), "", None, TurnResult("")),
        (says("7"), "x", int, TurnResult("x", "invalid_output")),
        (says("7"), "8", int, TurnResult("8")),
        (says("7"), None, int, TurnResult("7")),
        (Reply("So it", cut=True), None, None, TurnResult("So it", "max_tokens")),
        (Reply("So it", cut=True), "So it is.", None, TurnResult("So it is.")),
        (Reply("x", cut=True), "y", int, TurnResult("y", "invalid_output")),
        (Reply("x", cut=True), "8", int, TurnResult("8")),
    ],
)
def test_an_answer_is_judged_as_it_is_said(reply: Reply, answer: str | None, output: object, said: TurnResult) -> None:
    def puts_right(progress: Progress) -> Progress | None:
        return None if answer is None else progress.replace(answer=answer)

    agent = Agent("ann", ScriptedModel([]), patcher=after_model(puts_right), output=output)
    assert play(agent, reply).said == said


def test_what_stays_wrong_twice_can_still_be_put_right() -> None:
    agent = Agent("ann", ScriptedModel([]), patcher=after_model(lambda p: p.replace(answer="7") if p.answer else None))
    shaped = Agent("bob", ScriptedModel([]), patcher=agent.patcher, output=int)
    assert play(shaped, says("x"), says("y")).said == TurnResult("7")


# In a hub


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with Hub.open("memory:", clock=ManualClock()) as hub:
        yield hub


async def test_a_step_that_waits_is_recorded_and_one_that_does_not_is_not(hub: Hub) -> None:
    async def waits(progress: Progress) -> Progress:
        return progress.replace(system=f"{progress.system} Be brief.", notes={"a": 1})

    def looks(progress: Progress) -> Progress:
        return progress.replace(system=f"{progress.system} a={progress.notes['a']}")

    def patcher(steps: Steps) -> Steps:
        return steps.insert_before("call_model", waits).insert_before("call_model", looks)

    model = ScriptedModel([says("So.", usage=Usage(3, 1))])
    agent = Agent("bob", model, "Be kind.", patcher=patcher, without=["current_date"])
    reply = await agent.invoke("Hi.", hub=hub)
    assert (reply.text, reply.usage) == ("So.", Usage(3, 1))
    assert model.requests[0].system == "Be kind. Be brief. a=1"
    log = await hub.log(reply.channel_id)
    started = [each.event_data for each in log if each.event_type == EV_CALL_STARTED]
    assert [(data["index"], data["name"]) for data in started] == [(0, "step:waits"), (1, "model")]
    finished = [each.event_data for each in log if each.event_type == EV_CALL_FINISHED]
    assert finished[0]["result"] == {"system": "Be kind. Be brief.", "notes": {"a": 1}}


class Boom(Exception):
    pass


def raises(progress: Progress) -> None:
    raise Boom("too hot")


async def raises_later(progress: Progress) -> None:
    await asyncio.sleep(0)
    raise Boom("too hot")


def exits(progress: Progress) -> None:
    raise SystemExit(3)


async def cancels(progress: Progress) -> None:
    raise asyncio.CancelledError


async def no_json(progress: Progress) -> Progress:
    return progress.replace(notes={"a": object()})


def no_text(progress: Progress) -> Progress:
    return progress.replace(answer=7)


def no_progress(progress: Progress) -> object:
    return {"answer": "So."}


async def no_progress_later(progress: Progress) -> object:
    return "So."


def not_its_own(progress: Progress) -> Progress:
    return msgspec.structs.replace(progress, asked=0, hops=3)


def too_few() -> None: ...


def waits_in_secret(progress: Progress) -> object:
    return no_progress_later(progress)


async def past_the_check(progress: Progress) -> Progress:
    return msgspec.structs.replace(progress, notes={"a": object()})


async def too_much(progress: Progress) -> Progress:
    return progress.replace(system="x" * 300_000)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (raises, "mine: Boom: too hot"),
        (raises_later, "mine: Boom: too hot"),
        (exits, "mine: Interrupted: SystemExit: 3"),
        (cancels, "mine: Interrupted: CancelledError: "),
        (no_json, "mine: UsageError: the notes that a step gives cannot be recorded: object is no JSON value"),
        (no_text, "mine: UsageError: the answer that a step gives is 7; give a text or None"),
        (no_progress, "mine: it returned dict, not the progress, or None"),
        (no_progress_later, "mine: it returned str, not the progress, or None"),
        (not_its_own, "mine: it changed hops; a step can change: system, history, notes, reply, answer"),
        (waits_in_secret, "mine: it returned something to await; make it an async function"),
        (past_the_check, "mine: Encoding objects of type object is unsupported"),
        (too_much, "mine: what it changes has 300013 bytes; the limit is 262144"),
        (too_few, "mine: TypeError: too_few() takes 0 positional arguments but 1 was given"),
    ],
)
async def test_a_step_that_goes_wrong_fails_the_turn_with_its_words(hub: Hub, step: Function, told: str) -> None:
    model = ScriptedModel(["So."])
    agent = Agent("bob", model, patcher=before_model(step))
    with pytest.raises(TurnFailed) as failed:
        await agent.invoke("Hi.", thread_id="t", hub=hub)
    assert failed.value.reason == "step_error"
    assert told in str(failed.value)
    assert model.requests == []
    log = await hub.log(failed.value.channel_id)
    journal = [each.event_type for each in log if each.event_type.startswith("antiphon.call.")]
    assert journal == ([EV_CALL_STARTED, EV_CALL_FAILED] if inspect.iscoroutinefunction(step) else [])


async def test_the_next_turn_works_after_a_step_went_wrong(hub: Hub) -> None:
    def picky(progress: Progress) -> None:
        if progress.heard == "No.":
            raise Boom("no")

    agent = Agent("bob", ScriptedModel(["So."]), patcher=before_model(picky))
    with pytest.raises(TurnFailed):
        await agent.invoke("No.", thread_id="t", hub=hub)
    assert (await agent.invoke("Yes.", thread_id="t", hub=hub)).text == "So."


async def test_a_step_is_run_again_after_a_crash_unless_it_waits_and_has_returned() -> None:
    ran: list[str] = []

    def plain(progress: Progress) -> None:
        ran.append("plain")

    async def waits(progress: Progress) -> Progress:
        ran.append("waits")
        return progress.replace(system=f"run {len(ran)}")

    def patcher(steps: Steps) -> Steps:
        return steps.insert_before("call_model", plain).insert_before("call_model", waits)

    async with crashes() as place:
        first, then = Mind(), Mind(says("Paid."))
        await place.next_hub(first, patcher=patcher)
        await place.open()
        await wait_until(lambda: first.thinks)
        await place.next_hub(then, patcher=patcher)
        assert await place.answered() == ["Paid."]
        started = [entry.event_data["name"] for entry in await place.told("call.started")]
    assert ran == ["plain", "waits", "plain"]
    assert started == ["step:waits", "model", "model"]
    assert [mind.requests[0].system for mind in (first, then)] == ["run 2", "run 2"]


async def test_a_step_that_was_under_way_in_a_crash_is_run_again() -> None:
    runs = 0

    async def waits(progress: Progress) -> Progress:
        nonlocal runs
        runs += 1
        if runs == 1:
            await asyncio.Event().wait()
        return progress.replace(answer=f"Run {runs}.")

    async with crashes() as place:
        mind = Mind()
        await place.next_hub(mind, patcher=before_model(waits))
        await place.open()
        await wait_until(lambda: runs == 1)
        await place.next_hub(mind, patcher=before_model(waits))
        assert await place.answered() == ["Run 2."]
    assert mind.requests == []


async def test_a_turn_is_the_same_story_whatever_a_step_took_away() -> None:
    """The answer of a model is sent back, in a step that waits, and that is remembered over a crash."""

    async def sends_back(progress: Progress) -> Progress | None:
        return progress.replace(answer=None, reply=None) if progress.answer == "No." else None

    first, then = Mind(says("No.")), Mind(says("Yes."))
    async with crashes() as place:
        await place.next_hub(first, patcher=after_model(sends_back))
        await place.open()
        await wait_until(lambda: len(first.requests) == 2)
        await place.next_hub(then, patcher=after_model(sends_back))
        assert await place.answered() == ["Yes."]
        started = [(entry.event_data["index"], entry.event_data["name"]) for entry in await place.told("call.started")]
    assert started == [(0, "model"), (1, "step:mine"), (2, "model"), (2, "model"), (3, "step:mine")]
    assert len(then.requests) == 1


async def test_a_condition_that_raises_fails_the_turn_with_its_words(hub: Hub) -> None:
    def hot(progress: Progress) -> bool:
        raise Boom("too hot")

    agent = Agent(
        "bob", ScriptedModel(["So."]), patcher=lambda steps: steps.branch("continue_conversation", hot, "end")
    )
    with pytest.raises(TurnFailed) as failed:
        await agent.invoke("Hi.", hub=hub)
    assert (failed.value.reason, failed.value.detail) == ("step_error", "the way to end: Boom: too hot")


async def looks(progress: Progress) -> None: ...


async def listens(progress: Progress) -> None: ...


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (None, looks, "call 0 was model, and is step:looks now"),
        (looks, None, "call 0 was step:looks, and is model now"),
        (looks, listens, "call 0 was step:looks, and is step:listens now"),
    ],
)
async def test_a_turn_that_began_by_another_table_is_not_gone_on_with(
    before: Function | None, now: Function | None, what: str
) -> None:
    def patcher(step: Function | None) -> Callable[[Steps], Steps] | None:
        return None if step is None else before_model(step, step.__name__)

    async with crashes() as place:
        first = Mind(calls("get_time_date"))
        await place.next_hub(first, patcher=patcher(before))
        await place.open()
        await wait_until(lambda: len(first.requests) > 1)
        await place.next_hub(Mind(says("Paid.")), patcher=patcher(now))
        [failed] = await place.until("turn.failed")
    assert (failed.event_data["reason"], failed.event_data["detail"]) == ("idempotency_conflict", what)
