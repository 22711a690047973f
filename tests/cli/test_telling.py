import pytest

from antiphon.core.envelope import OPERATORS, Envelope
from antiphon.core.events import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_CREATED,
    EV_CHANNEL_EXPIRED,
    EV_CHANNEL_INVITE,
    EV_CHANNEL_INVITE_ACK,
    EV_CHANNEL_INVITE_REJECT,
    EV_CHANNEL_OPENED,
    EV_CHANNEL_PAUSED,
    EV_CHANNEL_QUARANTINED,
    EV_CONTEXT_SET,
    EV_DRAFT_REFUSED,
    EV_EXPECTATION_VIOLATED,
    EV_PACKET,
    EV_PARTICIPANT_REGISTERED,
    EV_TEXT,
    EV_TURN_ASSIGNED,
    EV_TURN_FAILED,
    EV_TURN_FENCED,
)
from antiphon.core.execution_events import (
    EV_CALL_CLEARED,
    EV_CALL_CONFLICTED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    EV_CALL_STARTED,
    EV_TURN_CLAIMED,
    EV_TURN_RELEASED,
)
from antiphon.runtime.envelope_text import describe_envelope, is_bookkeeping


def by_hub(event_type: str, audience: list[str] | None = None, **data: object) -> Envelope:
    return Envelope(sender_id="hub", audience=audience, event_type=event_type, event_data=data)


def by_ada(event_type: str, audience: list[str] | None = None, **data: object) -> Envelope:
    return Envelope(sender_id="ada", audience=audience, event_type=event_type, event_data=data)


SEATS = [{"name": "ada", "kind": "agent"}, {"name": "ben", "kind": "human"}]


@pytest.mark.parametrize(
    ("envelope", "words"),
    [
        (by_ada(EV_TEXT, text="Good morning."), "Good morning."),
        (by_ada(EV_TEXT, ["ben"], text="Psst."), "(to ben) Psst."),
        (by_ada(EV_PACKET, body="Done."), "Done."),
        (
            by_ada(EV_PACKET, body="Done.", context_updates={"set": {"urgent": True}, "delete": ["late"]}),
            "Done. [deletes late; sets urgent = true]",
        ),
        (by_ada(EV_CONTEXT_SET, set={"a": 1, "b": None}, delete=[]), "sets a = 1, b = null"),
        (by_ada(EV_CONTEXT_SET, set={}, delete=[]), "changes nothing"),
        (
            by_hub(EV_CHANNEL_CREATED, type="flow", creator="ada", participants=SEATS),
            "creates a channel: flow of ada, ben",
        ),
        (by_hub(EV_CHANNEL_CREATED, type="system", creator="hub", participants=[]), "creates a channel: system"),
        (by_hub(EV_CHANNEL_INVITE, ["ben"], type="flow"), "invites ben"),
        (by_ada(EV_CHANNEL_INVITE_ACK), "accepts the invitation"),
        (by_ada(EV_CHANNEL_INVITE_REJECT, reason="busy"), "declines the invitation: busy"),
        (by_hub(EV_CHANNEL_OPENED), "opens the channel"),
        (by_hub(EV_TURN_ASSIGNED, [OPERATORS], speakers=["ada"], reason="opens"), "gives the turn to ada: opens"),
        (by_hub(EV_TURN_ASSIGNED, [OPERATORS], speakers=[], reason=""), "gives the turn to nobody"),
        (by_hub(EV_CHANNEL_EXPIRED), "notes that the channel's time is over"),
        (by_hub(EV_CHANNEL_CLOSED, reason="answered"), "closes the channel: answered"),
        (by_hub(EV_CHANNEL_CLOSED, reason="done", by="ada"), "closes the channel for ada: done"),
        (
            by_hub(EV_EXPECTATION_VIOLATED, expectation="turn_within", seconds=120.0, speakers=["ada"]),
            "has waited 120 seconds for ada (turn_within)",
        ),
        (by_hub(EV_PARTICIPANT_REGISTERED, name="ada", kind="agent"), "registers ada (agent)"),
        (by_hub(EV_DRAFT_REFUSED, sender_id="ada", channel_id="c1", reason="loop"), "refuses ada in c1: loop"),
        (
            by_hub(EV_CHANNEL_QUARANTINED, channel_id="c1", sequence=4, error="torn"),
            "quarantines c1 from sequence 4: torn",
        ),
        (by_hub(EV_TURN_CLAIMED, turn="7/ada", epoch=1, owner="o"), "runs turn 7/ada"),
        (by_hub(EV_TURN_CLAIMED, turn="7/ada", epoch=2, owner="o"), "runs turn 7/ada, attempt 2"),
        (by_hub(EV_TURN_RELEASED, turn="7/ada", epoch=2), "puts turn 7/ada back in order"),
        (
            by_hub(EV_TURN_FAILED, turn="7/ada", speaker="ada", reason="model_error", detail="boom"),
            "ends turn 7/ada without an answer: model_error (boom)",
        ),
        (by_hub(EV_TURN_FENCED, channel_id="c1", turn="7/ada", why="late"), "fences turn 7/ada in c1: late"),
        (by_hub(EV_CHANNEL_PAUSED, reason="unattended:20"), "pauses the channel: unattended:20"),
        (by_hub(EV_CALL_STARTED, turn="7/ada", index=0, name="model", digest="d"), "0: asks the model"),
        (
            by_hub(EV_CALL_STARTED, turn="7/ada", index=1, name="pay", digest="d", args={"order": "7", "cents": 5}),
            '1: calls pay(order="7", cents=5)',
        ),
        (
            by_hub(EV_CALL_FINISHED, turn="7/ada", index=0, result={"text": "", "calls": [{"name": "pay"}]}),
            "0: asked for pay",
        ),
        (by_hub(EV_CALL_FINISHED, turn="7/ada", index=0, result={"text": "Hi.", "calls": []}), "0: answered Hi."),
        (by_hub(EV_CALL_FINISHED, turn="7/ada", index=0, result={}), "0: changed nothing"),
        (
            by_hub(EV_CALL_FINISHED, turn="7/ada", index=0, result={"system": "x", "notes": {}}),
            "0: changed notes, system",
        ),
        (
            by_hub(EV_CALL_FINISHED, turn="7/ada", index=1, result={"returned": {"text": "paid"}}, by="dana"),
            "1: returned paid, says dana",
        ),
        (by_hub(EV_CALL_FAILED, turn="7/ada", index=1, error="no"), "1: failed: no"),
        (
            by_hub(EV_CALL_DOUBTED, turn="7/ada", index=1, name="pay", why="it was under way"),
            "1: does not know what became of pay: it was under way",
        ),
        (by_hub(EV_CALL_CLEARED, turn="7/ada", index=1, by="dana"), "1: is to be made again, says dana"),
        (
            by_hub(EV_CALL_RETRIED, turn="7/ada", index=1, attempt=2, error="busy", delay=0.2512),
            "1: failed, attempt 2, and is made again in 0.251 seconds: busy",
        ),
        (
            by_hub(EV_CALL_CONFLICTED, turn="7/ada", index=1, name="pay", recorded="d", asked="e"),
            "1: was pay, and something else is asked for now",
        ),
        (by_ada("town.vote", **{"for": "ben"}), 'town.vote {"for":"ben"}'),
        (by_ada(EV_TEXT, words="no text"), 'ag2.msg.text {"words":"no text"}'),
        (by_hub(EV_DRAFT_REFUSED), "refuses ?: ?"),
    ],
)
def test_an_envelope_in_words(envelope: Envelope, words: str) -> None:
    assert describe_envelope(envelope) == words


def test_bookkeeping_is_what_only_operators_see() -> None:
    assert is_bookkeeping(by_hub(EV_TURN_ASSIGNED, [OPERATORS]))
    assert not is_bookkeeping(by_hub(EV_CHANNEL_INVITE, ["ben"]))
    assert not is_bookkeeping(by_hub(EV_CHANNEL_OPENED))
