"""The sentences for events, without a subject: `gives the turn to ben`.

Rule 1: each event of ours has a sentence here. `envelope_text` fills it in, and lists the fields of what has none.
Rule 2: a part in <> is left out if its field is empty.
Rule 3: where a field decides what happened, there is a sentence for each value of it (`VARIANT_FIELDS`).
"""

from __future__ import annotations

import re
from collections import defaultdict

import msgspec

from antiphon.core import conversation_events as conversation
from antiphon.core import events, execution_events
from antiphon.core import protection_events as protection
from antiphon.core import saga_events as sagas
from antiphon.core.envelope import Json

OPTIONAL_PART = re.compile(r"<([^<>{]*\{(\w+)[^<>]*)>")
MICRO_DOLLARS = 1_000_000

EventKey = type[events.Event] | str

SENTENCES: dict[EventKey, str] = {
    events.HistoryImported: "[imported as {role}< with key {key_id}>] {text}",
    events.InviteAccepted: "accepts the invitation",
    events.InviteRejected: "declines the invitation<: {reason}>",
    events.FirstWordsPrepared: "says when all have accepted: {text}",
    events.ChannelOpened: "opens the channel",
    events.ChannelForked: "forks {origin} at {at}< for {by}>",
    events.ChannelPaused: "pauses the channel: {reason}",
    events.ChannelExpired: "notes that the channel's time is over",
    events.ChannelClosed: "closes the channel< for {by}>: {reason}",
    events.ExpectationViolated: "has waited {seconds:g} seconds for {speakers} ({expectation})",
    events.DeadlineExtended: "counts the time< for {expectation}> from {since}: {reason}",
    events.TurnAssigned: "gives the turn to {speakers}< by rule {rule}><: {reason}>",
    events.FailedTurn: "ends turn {turn} without an answer: {reason}< ({detail})>",
    events.EV_PARTICIPANT_REGISTERED: "registers {name} ({kind})",
    events.EV_DRAFT_REFUSED: "refuses {sender_id}< in {channel_id}>: {reason}",
    events.EV_CHANNEL_QUARANTINED: "quarantines {channel_id} from sequence {sequence}: {error}",
    events.EV_CHANNEL_ERASED: "erases {channel_id} for {by}: {records} records",
    events.EV_AGENT_WARNED: "warns of {agent}: {message}",
    events.EV_HOOK_FAILED: "could not ask hook {hook} ({trigger}): {error}",
    events.EV_TURN_FENCED: "fences turn {turn} in {channel_id}: {why}",
    events.EV_CLOCK_JUMPED: "notices that the clock was set: by {delta_ms} ms",
    events.EV_TASK_STARTED: "gives a task to {agent} in {task}<: {reason}>",
    events.EV_TASK_PROGRESS: "hears of the task of {agent} in {task}<: calls {tool}>",
    events.EV_TASK_WAITING: "notes that the task in {task} waits for a person",
    events.EV_TASK_CONTINUED: "notes that the task in {task} goes on",
    events.EV_TASK_COMPLETED: "has the report of {agent} in {task}<: {reason}>",
    events.EV_TASK_FAILED: "gets nothing from {agent} in {task}<: {reason}>",
    events.EV_TASK_EXPIRED: "waits no longer for {agent} in {task}<: {reason}>",
    conversation.ConversationRefused: "refuses the handoff of {from_agent} to {target}: {reason}",
    conversation.ConversationReleased: "ends the hold for {by}<; {to} answers next>",
    conversation.ConversationUnrouted: "finds no agent for message {message}",
    conversation.TransportConnected: "connects the transports {names}",
    conversation.ReplyDelivered: "has delivered reply {sequence} by {transport}",
    conversation.ReplyUndeliverable: "cannot deliver reply {sequence} by {transport}: {error}",
    execution_events.TurnClaimed: "runs turn {turn}",
    execution_events.TurnReleased: "puts turn {turn} back in order",
    execution_events.TurnDelayed: "attempts turn {turn} again after {until}: its process died ({crashes} in a row)",
    execution_events.TurnSuspended: "suspends turn {turn} until a person decides: {why}",
    execution_events.TurnResumed: "lets turn {turn} be attempted again, says {by}",
    execution_events.ApprovalRequested: (
        "{index}: asks a person about {name}<({arguments})><: {why}><; {approvers} may decide><; until {decide_by}>"
    ),
    execution_events.ApprovalDecided: "{by} decides {approval_id}: {decision}< ({reason})>",
    execution_events.ApprovalExpired: "{index}: ends the wait for a person, who has not decided in time",
    execution_events.ApprovalReminded: "{index}: reminds of what waits for a person; again in {seconds:g} seconds",
    execution_events.CallApproved: "{index}: may leave, says {by}<, with other arguments: {arguments}>",
    execution_events.CallDoubted: "{index}: does not know what became of {name}: {why}",
    execution_events.CallCleared: "{index}: is to be made again, says {by}",
    execution_events.CallRetried: (
        "{index}: failed, attempt {attempt}, and is made again in {delay:.3g} seconds: {error}"
    ),
    execution_events.CallReturnedLate: "{index}: {name} returned after its deadline",
    execution_events.CallConflicted: "{index}: was {name}, and something else is asked for now",
    protection.DeadlineExpired: (
        "ends what is past the deadline of the {layer}, {deadline}<, by {overrun_ms} ms>< in turn {turn}>"
        "<; calls in progress: {in_flight}>"
    ),
    protection.DeadlineRebased: "moves the deadline {old} to {new}: a person was waited for {suspended_ms} ms",
    protection.RetryCharged: (
        "pays {cost:g} for a retry of {channel} from the bucket of {bucket}; {balance} thousandths are left"
    ),
    protection.RetryDenied: "does not allow a retry< of {model}>< in turn {turn}>: {reason}",
    protection.CostExceeded: (
        "notices that {scope} spends too fast: {spent} and {reserved} reserved in {window_s} seconds, "
        "more than {ceiling}<; {action}>"
    ),
    protection.FailureDecided: (
        "decides what follows from {failure} (row {row}, tier {tier}): {actions}<; if not possible: {otherwise}>"
        "< because of {reason}>"
    ),
    protection.EV_POLICY_DENIED: "denies {agent} the call of {tool} by policy< ({rule})>",
    protection.EV_POLICY_FAILED: "could not ask the policy, and denies {agent} the call of {tool}<: {error}>",
    protection.AgentCorrected: "tells< {agent}>: {text}",
    protection.RunCharged: "counts a call of {channel} here: {kind}< {name}>< of {agent}>< in {scope}>",
    protection.RunSettled: "notes the outcome of a call of {channel}<: {cost}><, tokens: {tokens}>",
    sagas.SagaRegistered: "registers that {comp_name} undoes {tool} ({step})",
    sagas.SagaOwed: "has what the run did undone ({steps} registered), because the channel ended: {reason}",
    sagas.SagaClaimed: "runs the compensations",
    sagas.SagaFinished: "has finished compensating: {done} undone, {skipped} skipped, {stuck} decided by a person",
    protection.OnceRegistered: "registers call {index} of turn {turn} in {channel} as the one call of {tool}",
}
"""By the event, or by its type if it has no shape of its own, or shares one."""

VARIANTS: dict[EventKey, dict[str, str]] = {
    execution_events.CallFailed: {
        "": "{index}: failed: {error}",
        "*": "{index}: is denied< by the guard {guard}> ({denied})<, which ends {ending}>: {error}",
    },
    protection.LoopDetected: {
        "correct": "notices a loop< of {agent}>: {repeated}, and says so to the agent",
        "terminate": "stops a loop< of {agent}>: {repeated}",
        "escalate": "asks a person about a loop< of {agent}>: {repeated}",
    },
    protection.BreakerChanged: {
        "open": "opens the breaker {scope}<: {reason}>< ({counts})>< until {retry_at}><; meanwhile: {fallback}>",
        "half_open": "lets one call try whether {scope} works again< ({probe})>",
        "closed": "closes the breaker {scope}<: {reason}>",
        "stopped": "stops {scope} until a person reopens the breaker<: {reason}>",
        "*": "puts the breaker {scope} from {source} to {target}<: {reason}>",
    },
    protection.BreakerCounted: {
        "": "counts a success of {channel} in the breaker {scope}",
        "neutral": "counts nothing in the breaker {scope}: {channel} has ended its call itself",
        "*": "counts a failure of {channel} in the breaker {scope}: {failure}",
    },
    protection.BudgetChanged: {
        "deny": "denies {need}: the budget of {scope} is {cap}, {spent} spent and {reserved} reserved",
        "ask": "asks a person about {need}: the budget of {scope} is {cap}, {spent} spent and {reserved} reserved",
        "expire": "books {need} in full in the budget of {scope}: the call has not returned in its time",
        "warn": "warns of the budget of {scope}: {spent} spent and {reserved} reserved of {cap}",
    },
    protection.LimitReached: {
        "hop": "refuses a handoff< to {rejected_target}>: {limit} in a row is the limit< ({route})>",
        "depth": "refuses a task< for {rejected_target}>: it would be {count} deep, the limit is {limit}",
        "turns": "has reached the limit of turns: {limit}",
        "spawn": "refuses a task< for {rejected_target}>: {limit} of a run is the limit",
    },
    protection.DeadlockDetected: {
        "warn": "notices no progress between {cycle} ({kind}, {occurrences} times)",
        "trip": "ends the deadlock of {cycle} ({kind}, {occurrences} times)<; {routed_to} gets the turn>",
    },
    sagas.SagaExecuted: {
        "done": "notes that {step} has taken effect",
        "failed": "notes that {step} has failed, and need not be undone",
        "unknown": "does not know whether {step} took effect",
        "repeated": "notes that {step} was answered with the result of another call",
    },
    sagas.SagaCompensation: {
        "pending": "lets {comp_name} be tried again for {step}<, says {by}>",
        "running": "undoes {step} with {comp_name}, attempt {attempt}",
        "failed": "could not undo {step} with {comp_name}, attempt {attempt}<: {why}><; the next is after {until}>",
        "stuck": "waits for a person to decide how {step} is undone by {comp_name}<: {why}>",
        "done": "has undone {step} with {comp_name}<, says {by}>",
        "skipped": "does not undo {step} with {comp_name}<, says {by}>",
    },
    protection.ValidationResult: {
        "pass": "gate {gate} ({side}) passes: {results}<; confidence {confidence}>",
        "fail": "gate {gate} ({side}) fails: {results}<; confidence {confidence}>",
    },
}
"""By the event, then by the value of its variant field; `*` stands for every other value."""

VARIANT_FIELDS: dict[EventKey, str] = {
    execution_events.CallFailed: "denied",
    protection.LoopDetected: "action",
    protection.BreakerChanged: "target",
    protection.BreakerCounted: "failure",
    protection.BudgetChanged: "op",
    protection.LimitReached: "kind",
    protection.DeadlockDetected: "action",
    sagas.SagaExecuted: "status",
    sagas.SagaCompensation: "status",
    protection.ValidationResult: "verdict",
}
"""The field of an event that selects its sentence."""


def sentence_of(key: EventKey, fields: Json) -> str:
    """The sentence of an event, filled in; "" if it has none."""
    variants = VARIANTS.get(key)
    if variants is None:
        return fill_sentence(SENTENCES.get(key, ""), fields)
    chosen = fields.get(VARIANT_FIELDS[key])
    return fill_sentence(variants.get(str(chosen), variants.get("*", "")), fields)


def fill_sentence(sentence: str, fields: Json) -> str:
    """The sentence with the fields in their places; a `?` for one that is missing."""
    whole = OPTIONAL_PART.sub(lambda part: part[1] if fields.get(part[2]) else "", sentence)
    return whole.format_map(defaultdict(lambda: "?", fields))


def shown_fields(event: events.Event) -> Json:
    """The fields of an event as sentences show them: names joined, amounts with their units."""
    shown: Json = {key: _shown_value(value) for key, value in msgspec.structs.asdict(event).items()}
    return {**shown, **_derived_fields(event)}


def generic_sentence(event_type: str, data: Json) -> str:
    """An event without a sentence: its type in words, and its fields."""
    words = event_type.removeprefix("antiphon.").replace(".", " ").replace("_", " ")
    fields = ", ".join(f"{name}={json_text(value)}" for name, value in data.items())
    return f"{words}: {fields}" if fields else words


def format_arguments(args: Json) -> str:
    """The arguments of a call as source text."""
    return ", ".join(f"{key}={json_text(value)}" for key, value in args.items())


def json_text(value: object) -> str:
    """A value as JSON."""
    return msgspec.json.encode(value).decode()


def join_names(names: list[str]) -> str:
    """Names, or that there are none."""
    return ", ".join(names) or "nobody"


def amount_text(amount: int, unit: str) -> str:
    """An amount with its unit: $0.25, 1,200 tokens, 3 model calls."""
    if unit == "micro":
        return f"${amount / MICRO_DOLLARS:,.2f}" if amount % 10_000 == 0 else f"${amount / MICRO_DOLLARS:,.6f}"
    noun = unit.replace("_", " ")
    return f"{amount:,} {noun.removesuffix('s') if amount == 1 else noun}"


def _shown_value(value: object) -> object:
    if isinstance(value, list):
        return join_names([each if isinstance(each, str) else json_text(each) for each in value]) if value else ""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {json_text(each)}" for name, each in value.items())
    return value


def _derived_fields(event: events.Event) -> Json:
    """What the sentence of an event shows that is not a field of it as it is."""
    match event:
        case events.TurnAssigned(speakers=speakers, rule=rule):
            return {"speakers": join_names(speakers), "rule": "" if rule is None else str(rule)}
        case events.ExpectationViolated(speakers=speakers):
            return {"speakers": join_names(speakers)}
        case execution_events.ApprovalRequested(args=args):
            return {"arguments": format_arguments(args)}
        case execution_events.CallApproved(args=args):
            return {"arguments": format_arguments(args or {})}
        case execution_events.CallFailed(final=final):
            return {"ending": "the turn" if final else ""}
        case _:
            return _protection_fields(event)


def _protection_fields(event: events.Event) -> Json:
    match event:
        case protection.LoopDetected():
            return {"repeated": _repetition(event)}
        case protection.BudgetChanged() | protection.CostExceeded():
            amounts = ("need", "spent", "reserved", "cap", "ceiling")
            return {name: amount_text(getattr(event, name), event.unit) for name in amounts if hasattr(event, name)}
        case protection.RunSettled(cost=cost):
            return {"cost": amount_text(cost, "micro") if cost else ""}
        case protection.LimitReached(chain=chain):
            return {"route": " → ".join(chain)}
        case protection.ValidationResult(checks=checks, confidence=confidence, tau=tau):
            wanted = "" if tau is None else f", {tau:g} is wanted"
            known = "" if confidence is None else f"{confidence:g}{wanted}"
            return {"results": ", ".join(map(_check_text, checks)) or "no checks", "confidence": known}
        case _:
            return {}


def _repetition(loop: protection.LoopDetected) -> str:
    if loop.detector == "cycle":
        return f"the same {loop.period or 'few'} calls again and again"
    what = loop.tool if loop.detector == "tool" else "the same text"
    return f"{what} {loop.count} times among the last {loop.window} (the limit is {loop.threshold})"


def _check_text(check: protection.GateCheck) -> str:
    return f"{check.name} {check.status}" + (f" ({check.code})" if check.code else "")
