"""The loop detector on a log alone: what counts as a loop, when counting begins anew, and what follows."""

from __future__ import annotations

from functools import reduce

import pytest

from antiphon import EV_PACKET, AgentTarget, Envelope, FromSpeaker, RulesInvalid, Transition, TransitionGraph
from antiphon.core.call_permits import JournalBatch, TurnClaim, record_permitted
from antiphon.core.codec import from_json, to_json
from antiphon.core.envelope import OPERATORS
from antiphon.core.execution_events import EV_APPROVAL_DECIDED, EV_CALL_FAILED, EV_CALL_STARTED, CallStarted
from antiphon.core.protection_events import EV_LOOP_DETECTED
from antiphon.core.ruleset import SavedFold, restore_fold
from antiphon.core.step import hub_draft, journal_draft, record
from antiphon.guards.loop_windows import LoopMemory
from antiphon.guards.loops import LoopDetector
from antiphon.guards.named_guards import guard_from_data, guard_to_data, guards_of
from antiphon.testing import check_guard
from tests.guards.looping import LoopScene, repeated
from tests.support.envelopes import at
from tests.support.pure_channel import PureChannel

REGULATED = LoopDetector().for_tier("regulated")


def scene(**options: object) -> LoopScene:
    guard = LoopDetector(**options)  # type: ignore[arg-type]
    return LoopScene(guard_to_data(guard))


# Calls


def test_the_third_equal_call_is_not_made_and_the_fourth_ends_the_turn() -> None:
    desk = scene()
    assert repeated(5, lambda: desk.call(q="x")) == ["made", "made", "denied", "final", "final"]
    assert desk.actions == ["correct", "terminate", "terminate"]


def test_what_is_recorded_of_a_loop() -> None:
    desk = scene()
    repeated(3, lambda: desk.call(q="secret"))
    started = [each for each in desk.log if each.event_type == EV_CALL_STARTED and each.event_data["name"] == "search"]
    [loop] = desk.trips
    assert loop == {
        "detector": "tool",
        "key": started[0].event_data["same"],
        "action": "correct",
        "agent": "bob",
        "tool": "search",
        "count": 3,
        "window": 5,
        "threshold": 3,
        "first_seq": started[0].sequence,
        "last_seq": started[2].sequence,
    }
    failed, detected = desk.log[-2:]
    assert (failed.event_type, detected.event_type) == (EV_CALL_FAILED, EV_LOOP_DETECTED)
    assert detected.causation_id == failed.envelope_id
    assert detected.audience == [OPERATORS]
    assert b"secret" not in to_json(detected)


def test_the_model_reads_what_it_did_and_what_to_do_instead() -> None:
    desk = scene()
    repeated(3, lambda: desk.call(q="x"))
    assert desk.last_error == (
        "search was not called again: this would be call 3 with the same arguments among the last 5. Use the results "
        "that you have, call it with other arguments, or go on without it; if you repeat it, your turn ends."
    )
    desk.call(q="x")
    assert desk.last_error == (
        "search was not called again: this would be call 4 with the same arguments among the last 5. You were told "
        "before, so your turn ends."
    )


def test_a_hash_of_the_text_of_arguments_would_not_see_it() -> None:
    desk = scene()
    assert [desk.call(q="caf\u00e9", n=1), desk.call(n=1.0, q="cafe\u0301"), desk.call(n=1, q="caf\u00e9")] == [
        "made",
        "made",
        "denied",
    ]


@pytest.mark.parametrize(
    ("letters", "denied_at"),
    [
        ("AABBA", 5),
        ("ABACA", 5),
        ("ABCDA", None),
        ("AABCDA", None),
        ("AABCDAA", None),
        ("ABABA", 5),
        ("AABBCCDD", None),
    ],
)
def test_the_window_is_the_last_five_calls(letters: str, denied_at: int | None) -> None:
    desk = scene()
    became = [desk.call(q=letter) for letter in letters]
    assert (became.index("denied") + 1 if "denied" in became else None) == denied_at


@pytest.mark.parametrize(("window", "threshold"), [(2, 2), (4, 2), (5, 3), (5, 5), (9, 4), (100, 100)])
def test_the_threshold_is_exact(window: int, threshold: int) -> None:
    desk = scene(window=window, threshold=threshold)
    assert repeated(threshold, lambda: desk.call(q="x")) == [*["made"] * (threshold - 1), "denied"]
    assert desk.trips[0]["threshold"] == threshold


def test_a_cycle_of_three_calls_is_a_loop_the_third_time() -> None:
    desk = scene()
    became = [desk.call(q=letter) for letter in "ABCABCABC"]
    assert became == ["made"] * 8 + ["denied"]
    [loop] = desk.trips
    assert (loop["detector"], loop["period"], loop["count"]) == ("cycle", 3, 3)
    assert "the same 3 calls" in desk.last_error
    assert desk.call(q="A") == "final"


def test_a_cycle_of_two_calls_is_a_loop_with_a_higher_threshold_too() -> None:
    desk = scene(window=6, threshold=4)
    assert [desk.call(q=letter) for letter in "ABABABAB"] == ["made"] * 7 + ["denied"]
    assert (desk.trips[0]["detector"], desk.trips[0]["period"]) == ("cycle", 2)


def test_a_cycle_of_four_calls_is_none() -> None:
    desk = scene()
    assert [desk.call(q=letter) for letter in "ABCD" * 5] == ["made"] * 20


def test_a_window_over_all_agents_would_let_interleaving_hide_a_loop() -> None:
    desk = scene()
    for _ in range(2):
        assert desk.call("bob", q="x") == "made"
        assert [desk.call("cat", q=str(number)) for number in range(4)] == ["made"] * 4
        desk.next_turn()
    assert desk.call("bob", q="x") == "denied"


def test_agents_that_make_the_same_call_do_not_add_up() -> None:
    desk = LoopScene(people="ann:human bob cat dan eve")
    assert [desk.call(who, q="x") for who in ("bob", "cat", "dan", "eve")] == ["made"] * 4


def test_members_of_a_team_have_windows_of_their_own() -> None:
    desk = scene()
    for member in ("bob/billing", "bob/legal", "bob/billing", "bob/legal"):
        started = CallStarted("9/bob", desk.index, "search", "d", {}, agent=member, same="k")
        desk.index += 1
        assert desk.record(EV_CALL_STARTED, started) == ["call.started"]
    assert desk.trips == []


def test_innocent_calls_of_the_message_are_made() -> None:
    desk = scene()
    repeated(2, lambda: desk.call(q="x"))
    same, other = ("search", {"q": "x"}), ("search", {"q": "y"})
    assert desk.message("bob", other, same, ("pay", {"cents": 5})) == ["made", "denied", "made"]
    assert desk.message("bob", same, ("search", {"q": "z"})) == ["final", "made"]


def test_equal_calls_of_one_message_are_one_trip() -> None:
    desk = scene()
    same, other = ("search", {"q": "x"}), ("search", {"q": "y"})
    assert desk.message("bob", *[same] * 5) == ["made", "made", "denied", "denied", "denied"]
    assert desk.actions == ["correct"]
    assert desk.message("bob", *[other] * 3) == ["made", "made", "final"]


def test_two_loops_of_one_message_are_both_told() -> None:
    desk = scene(window=10)
    same, other = ("search", {"q": "x"}), ("search", {"q": "y"})
    assert desk.message("bob", same, other, same, other, same, other) == ["made"] * 4 + ["denied"] * 2
    assert desk.actions == ["correct", "correct"]
    assert desk.message("bob", same) == ["final"]


def test_the_window_goes_on_in_the_next_turn() -> None:
    desk = scene()
    became = []
    for _ in range(4):
        became.append(desk.call(q="x"))
        desk.next_turn()
    assert became == ["made", "made", "denied", "final"]


def test_a_call_that_starts_again_after_a_crash_counts_once() -> None:
    desk = scene()
    desk.asks_model("bob")
    assert [desk.start_at(index, "bob", "search", {"q": "x"}) for index in (2, 2, 2, 3, 3, 2, 3)] == ["made"] * 7
    assert desk.start_at(4, "bob", "search", {"q": "x"}) == "denied"
    assert desk.trips[0]["count"] == 3


def test_calls_that_left_together_may_all_start_again() -> None:
    desk = scene()
    wanted = [("search", {"q": letter}) for letter in "AABCDEFGHIJKAA"]
    assert desk.message("bob", *wanted) == ["made"] * 14
    assert [desk.start_at(2 + place, "bob", *each) for place, each in enumerate(wanted)] == ["made"] * 14


def test_calls_that_could_not_be_made_are_no_loop() -> None:
    desk = scene()
    for _ in range(5):
        desk.index += 1
        # A call without `same` was refused for what it asks for: an unknown tool, or wrong arguments.
        assert desk.record(EV_CALL_STARTED, CallStarted("9/bob", desk.index, "seach", "d", {})) == ["call.started"]
    assert desk.trips == []


def test_calls_that_hand_over_do_not_count() -> None:
    desk = scene()
    for round_ in range(4):
        assert desk.call(tool="edit", patch=round_) == "made"
        assert desk.call(tool="to_reviewer", reason="please review") == "made"
        finished = {"returned": {"text": "", "handoff": {"target": "cat"}}}
        event = {"turn": f"{desk.turn}/bob", "index": desk.index, "result": finished}
        channel = desk.channel
        draft = journal_draft("antiphon.call.finished", event)
        channel.took(record(channel.fold, draft, ruleset=channel.ruleset, at=at(channel.now), new_id=channel.new_id))
        desk.next_turn()
    assert desk.trips == []


# When counting begins anew


def test_a_message_of_a_person_begins_everything_anew() -> None:
    desk = LoopScene(kind="conversation", people="ann:human bob")
    assert repeated(3, lambda: desk.call(q="x")) == ["made", "made", "denied"]
    desk.channel.says("ann", "try again")
    assert repeated(4, lambda: desk.call(q="x")) == ["made", "made", "denied", "final"]


def test_a_message_of_outside_code_begins_everything_anew() -> None:
    desk = LoopScene(kind="conversation", people="cron:service bob")
    assert repeated(2, lambda: desk.call(q="x")) == ["made"] * 2
    desk.channel.says("cron", "next run")
    assert repeated(2, lambda: desk.call(q="x")) == ["made"] * 2


def test_a_message_of_another_agent_begins_nothing_anew() -> None:
    desk = LoopScene(kind="conversation", people="cat bob")
    assert repeated(2, lambda: desk.call(q="x")) == ["made"] * 2
    desk.channel.says("cat", "go on, please")
    assert desk.call(q="x") == "denied"


def test_a_replan_begins_nothing_anew() -> None:
    desk = LoopScene(kind="conversation", people="cat bob")
    repeated(2, lambda: desk.call(q="x"))
    plan = hub_draft("antiphon.flow.decision", {"failure": "F5", "tier": "batch", "row": "F5", "actions": ["replan"]})
    channel = desk.channel
    channel.took(record(channel.fold, plan, ruleset=channel.ruleset, at=at(9), new_id=channel.new_id))
    assert desk.call(q="x") == "denied"


def decided(desk: LoopScene) -> None:
    data = {"approval_id": "here.9.bob.1.4", "decision": "approve", "by": "ann"}
    channel, draft = desk.channel, hub_draft(EV_APPROVAL_DECIDED, data)
    channel.took(record(channel.fold, draft, ruleset=channel.ruleset, at=at(channel.now), new_id=channel.new_id))


def test_a_decision_of_a_person_begins_the_window_anew_and_forgets_no_trip() -> None:
    desk = scene()
    repeated(2, lambda: desk.call(q="x"))
    decided(desk)
    assert repeated(3, lambda: desk.call(q="x")) == ["made", "made", "denied"]
    decided(desk)
    assert repeated(3, lambda: desk.call(q="x")) == ["made", "made", "final"]


def test_a_result_that_shows_progress_begins_the_window_anew() -> None:
    desk = scene()

    def test_run(reached: str) -> str:
        desk.asks_model("bob")
        return desk.start("bob", "run_tests", {}, result=reached)

    assert [test_run(f"{left} failing") for left in range(9, 0, -1)] == ["made"] * 9
    assert [test_run("1 failing"), test_run("1 failing")] == ["made", "denied"]


def test_progress_of_one_tool_ends_the_window_of_its_agent_alone() -> None:
    desk = scene()

    def step_of(agent: str, reached: str) -> list[str]:
        desk.asks_model(agent)
        return [desk.start(agent, "read", {}), desk.start(agent, "run_tests", {}, result=reached)]

    assert [step_of("bob", str(left)) for left in range(4)] == [["made", "made"]] * 4
    assert [step_of("cat", "same") for _ in range(2)] == [["made", "made"]] * 2
    assert step_of("cat", "same") == ["denied", "denied"]


# Polls


def polled(desk: LoopScene, *, most: int = 100, seconds: float = 0.0, result: str = "", tool: str = "status") -> str:
    desk.asks_model("bob")
    return desk.start("bob", tool, {"job": 7}, poll=(most, seconds), result=result)


def test_a_poll_may_be_repeated_up_to_its_limit() -> None:
    desk = scene()
    assert repeated(6, lambda: polled(desk, most=4)) == ["made"] * 4 + ["denied", "final"]
    assert (desk.trips[0]["count"], desk.trips[0]["threshold"]) == (5, 5)
    assert "this would be poll 6 with the same arguments, and 4 may follow each other" in desk.last_error


def test_a_poll_that_comes_too_early_is_denied_with_the_time_at_which_it_may_be_made() -> None:
    desk = scene()
    assert [polled(desk, seconds=30), polled(desk, seconds=30)] == ["made", "denied"]
    due = at(desk.channel.now - 1 + 27)  # the second poll, three seconds after the first
    assert desk.last_error.startswith("status was not called: it may be called again with these arguments in ")
    assert "Z" in due
    assert "end your turn" in desk.last_error
    desk.channel.now += 30
    assert polled(desk, seconds=30) == "made"
    assert desk.trips == []


def test_polls_that_come_too_early_are_limited_too() -> None:
    desk = scene()
    became = repeated(12, lambda: polled(desk, most=10, seconds=1000))
    assert became == ["made"] + ["denied"] * 10 + ["final"]
    assert desk.actions == ["correct", "terminate"]


def test_polls_and_other_calls_are_counted_apart() -> None:
    desk = scene()
    for letter in "ABCDEFGH":
        assert [polled(desk), polled(desk), desk.call(q=letter)] == ["made"] * 3


def test_a_poll_that_has_led_to_new_work_begins_anew() -> None:
    desk = scene()
    for letter in "ABCDEFGH":
        assert repeated(3, lambda: polled(desk, most=3)) == ["made"] * 3
        assert desk.call("bob", "work", on=letter) == "made"
    assert [polled(desk, most=3) for _ in range(4)][-1] == "denied"


def test_a_poll_whose_result_changes_begins_anew() -> None:
    desk = scene()
    became = [polled(desk, most=3, result=reached) for reached in ("10%", "10%", "20%", "20%", "20%", "20%")]
    assert became == ["made"] * 5 + ["denied"]


def test_how_many_polls_are_remembered_is_bounded() -> None:
    desk = scene()
    for job in range(300):
        desk.start("bob", "status", {"job": job}, poll=(5, 0.0))
    memory = next(each for each in desk.channel.fold.memories if isinstance(each, LoopMemory))
    assert len(memory.windows["bob"].polls) == 64


# Where a person decides


def test_in_the_regulated_tier_a_person_decides_the_second_time() -> None:
    desk = LoopScene(guard_to_data(REGULATED))
    assert repeated(3, lambda: desk.call(q="x")) == ["made", "made", "denied"]
    assert "a person has to decide" in desk.last_error
    same = ("search", {"q": "x"})
    assert desk.message("bob", same, ("search", {"q": "y"}), same) == ["asked", "made", "denied"]
    assert desk.actions == ["correct", "escalate"]
    request = next(each.event_data for each in desk.log if each.event_type == "antiphon.approval.requested")
    assert (request["guard"], request["why"]) == (
        "loop",
        "bob repeats itself, also after it was told: this would be call 4 with the same arguments among the last 5",
    )
    decided(desk)
    assert desk.call(q="x") == "made"


def test_the_tier_fills_in_what_was_left_open() -> None:
    def made(tier: str, **fields: object) -> LoopDetector:
        [loop] = [
            each for each in guards_of({"tier": tier, "guards": [{"name": "loop", **fields}]}) if each.name == "loop"
        ]
        assert isinstance(loop, LoopDetector)
        return loop

    assert made("interactive") == LoopDetector(repeated_call="terminate")
    assert made("batch") == LoopDetector(repeated_call="terminate", repeated_text="close")
    assert made("regulated") == LoopDetector(repeated_call="ask", repeated_text="pause")
    assert made("regulated", repeated_call="terminate").repeated_call == "terminate"
    for tier in ("interactive", "batch", "regulated"):
        assert [each.name for each in guards_of({"tier": tier})].count("loop") == 1
    with pytest.raises(RulesInvalid, match="threshold of loop is 'unlimited', and the regulated tier wants a number"):
        made("regulated", threshold="unlimited")


def test_it_can_be_turned_off() -> None:
    desk = scene(threshold="unlimited")
    assert repeated(20, lambda: desk.call(q="x")) == ["made"] * 20


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"window": 1}, "window of loop is 1; give a number from 2 to 100"),
        ({"window": 101}, "window of loop is 101"),
        ({"window": True}, "window"),
        ({"threshold": 1}, "threshold of loop is 1; give a number from 2 to the window, 5, or 'unlimited'"),
        ({"threshold": 6}, "threshold of loop is 6"),
        ({"threshold": 0}, "threshold of loop is 0"),
        ({"repeated_call": "stop"}, "repeated_call"),
        ({"repeated_text": "stop"}, "repeated_text"),
        ({"thresold": 3}, "the guard 'loop' has no field 'thresold'"),
    ],
)
def test_bad_values_are_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(RulesInvalid, match=why):
        guard_from_data({"name": "loop", **fields})
    if "thresold" not in fields:
        with pytest.raises(RulesInvalid):
            LoopDetector(**fields)  # type: ignore[arg-type]


# Texts


def test_a_third_equal_text_is_told_and_a_fourth_ends_the_discussion() -> None:
    channel = PureChannel("discussion", "ann:agent", "bob:agent", guards=["loop"])
    said = []
    for _ in range(3):
        channel.says("ann", "Please   CONTINUE with it.") if said else channel.says("ann", "please continue with it.")
        said.append(channel.says("bob", f"I cannot, {len(said)} times over."))
    loops = [each for each in channel.log if each.event_type == EV_LOOP_DETECTED]
    assert [(each.event_data["detector"], each.event_data["action"], each.event_data["agent"]) for each in loops] == [
        ("text", "correct", "ann")
    ]
    [note] = [each for each in channel.log if each.event_type == "antiphon.agent.corrected"]
    assert note.audience == ["ann", OPERATORS]
    assert note.event_data["text"] == (
        "You have said the same 3 times among your last 5 messages, and nothing has come of it. Say or do something "
        "else, or say what you are missing."
    )
    assert channel.says("ann", "Please continue with it.") == ["msg.text", "flow.loop_detected", "channel.closed"]
    assert channel.state.close_reason == "loop"


@pytest.mark.parametrize(
    ("kind", "people", "tier", "ends"),
    [
        ("conversation", ("ann:agent", "bob:agent"), None, "paused"),
        ("conversation", ("ann:agent", "bob:agent"), "interactive", "paused"),
        ("conversation", ("ann:agent", "bob:agent"), "batch", "closed"),
        ("conversation", ("ann:agent", "bob:agent"), "regulated", "paused"),
        ("discussion", ("ann:agent", "bob:agent"), None, "closed"),
        ("discussion", ("ann:agent", "bob:agent"), "interactive", "closed"),
        ("discussion", ("ann:agent", "bob:agent"), "batch", "closed"),
        ("discussion", ("ann:agent", "bob:agent"), "regulated", "closed"),
    ],
)
def test_what_follows_of_repeated_texts_by_type_and_tier(
    kind: str, people: tuple[str, ...], tier: str | None, ends: str
) -> None:
    channel = PureChannel(kind, *people, guards=["loop"], **({"tier": tier} if tier else {}))
    for round_ in range(4):
        last = channel.says("ann", "We should meet on Monday.")
        if round_ < 3:
            channel.says("bob", f"Monday? No, rather on day {round_}.")
    assert last[-1] == f"channel.{ends}"
    assert (channel.state.paused or channel.state.close_reason) == "loop"


def test_in_a_channel_with_turns_a_person_has_the_turn() -> None:
    graph = TransitionGraph("ann", [Transition(FromSpeaker("ann"), AgentTarget("bob"))], AgentTarget("ann"))
    loop = {"name": "loop", "repeated_text": "pause"}
    people = ("ann:agent", "bob:agent", "eve:human")
    channel = PureChannel("workflow", *people, guards=[loop], graph=graph.to_dict())
    for round_ in range(4):
        assert channel.state.speakers == ("ann",)
        channel.says("ann", "We should meet on Monday.")
        if round_ < 3:
            channel.says("bob", f"No, rather on day {round_}.")
    assigned = channel.log[-1]
    assert (assigned.event_data["speakers"], assigned.event_data["reason"]) == (["eve"], "loop")
    channel.says("eve", "Tuesday it is.")
    assert channel.state.speakers == ("ann",)
    assert "flow.loop_detected" not in channel.says("ann", "We should meet on Monday.")


def test_texts_of_people_are_no_loop() -> None:
    channel = PureChannel("conversation", "ann:human", "bob:agent", guards=["loop"])
    for _ in range(6):
        channel.says("ann", "Hello, is anybody there?")
    assert not [each for each in channel.log if each.event_type == EV_LOOP_DETECTED]


@pytest.mark.parametrize("text", ["Ok.", "Done!", "  next   ", "\uff2f\uff4b\uff0e \u00a0"])
def test_short_texts_are_no_loop(text: str) -> None:
    channel = PureChannel("conversation", "cat:agent", "bob:agent", guards=["loop"])
    for _ in range(8):
        channel.says("cat", text)
        channel.says("bob", text)
    assert not [each for each in channel.log if each.event_type == EV_LOOP_DETECTED]


def packet(sender: str, body: str, **routing: object) -> Envelope:
    data = {"body": body, "routing": routing, "context_updates": {"set": {}, "delete": []}}
    return Envelope("", "", sender, None, EV_PACKET, data)


def test_words_that_go_with_a_handoff_are_no_loop() -> None:
    guard, memory = LoopDetector(), LoopMemory({"boss": "agent", "bob": "agent"})
    for number in range(6):
        memory = guard.evolve(memory, packet("boss", "Over to you, please.", target="bob"))
        memory = guard.evolve(memory, packet("bob", f"Part {number} is done."))
    assert [len(window.texts) for window in memory.windows.values()] == [5]
    refused = packet("boss", "Over to you, please.", target="bob", rejected="hop_limit:5")
    memory = reduce(guard.evolve, [packet("boss", "Over to you, please."), refused, refused], memory)
    assert [text.key for text in memory.windows["boss"].texts] == [memory.windows["boss"].texts[0].key] * 3


def test_the_texts_of_each_agent_are_counted_apart() -> None:
    channel = PureChannel("discussion", "ann:agent", "bob:agent", "cat:agent", guards=["loop"])
    for number in range(4):
        for who in ("ann", "bob", "cat"):
            channel.says(who, f"I agree with all of point {number}.")
    assert not [each for each in channel.log if each.event_type == EV_LOOP_DETECTED]


# What it is as a guard


def test_other_limits_fold_a_log_to_the_same_trips() -> None:
    desk = scene()
    repeated(4, lambda: desk.call(q="x"))
    folded = [
        reduce(guard.evolve, (each for each in desk.log if each.event_type in guard.hears), LoopMemory())
        for guard in (LoopDetector(), LoopDetector(window=9, threshold=9), LoopDetector(threshold="unlimited"))
    ]
    assert [memory.windows["bob"].trips for memory in folded] == [2, 2, 2]
    assert [memory.windows["bob"].unread for memory in folded] == [folded[0].windows["bob"].unread] * 3


def test_its_memory_is_kept_in_a_snapshot() -> None:
    desk = scene()
    repeated(2, lambda: desk.call(q="x"))
    polled(desk, result="some")
    fold, ruleset = desk.channel.fold, desk.channel.ruleset
    saved = from_json(to_json({"state": fold.state, "memories": list(fold.memories)}), SavedFold)
    restored = restore_fold(ruleset, saved)
    assert restored is not None
    assert restored.memories == fold.memories
    desk.channel.fold = restored
    assert desk.call(q="x") == "denied"


def test_it_is_a_guard() -> None:
    check_guard(LoopDetector())
    check_guard(REGULATED)


def test_parallel_batches_are_asked_about_one_after_the_other() -> None:
    desk = scene()
    drafts = tuple(
        journal_draft(EV_CALL_STARTED, CallStarted("9/bob", place, "search", "d", {}, same="k")) for place in range(4)
    )
    channel = desk.channel
    admitted = record_permitted(
        channel.fold,
        JournalBatch(TurnClaim("9/bob", 1), drafts),
        ruleset=channel.ruleset,
        at=at(5),
        new_id=channel.new_id,
    )
    kinds = [each.event_type.removeprefix("antiphon.") for each in admitted.batch]
    assert kinds == ["call.started"] * 3 + ["call.failed", "flow.loop_detected", "call.started", "call.failed"]
