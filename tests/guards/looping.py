"""A channel under a loop detector, in which agents call tools and say things, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from antiphon import Envelope
from antiphon.core.call_permits import JournalBatch, TurnClaim, record_permitted
from antiphon.core.canonical import call_key
from antiphon.core.execution_events import (
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    CallFinished,
    CallStarted,
)
from antiphon.core.protection_events import EV_LOOP_DETECTED
from antiphon.core.step import journal_draft
from tests.support.envelopes import at
from tests.support.pure_channel import PureChannel

MODEL = "model"


class LoopScene:
    """Calls tools for agents, and tells what was recorded of it."""

    def __init__(self, guard: object = "loop", *, kind: str = "discussion", people: str = "ann:human bob cat") -> None:
        seats = [each if ":" in each else f"{each}:agent" for each in people.split()]
        self.channel = PureChannel(kind, *seats, guards=[guard])
        self.turn = 9
        self.index = 0

    @property
    def log(self) -> list[Envelope]:
        return self.channel.log

    @property
    def trips(self) -> list[dict[str, object]]:
        """The loops that are recorded."""
        return [each.event_data for each in self.log if each.event_type == EV_LOOP_DETECTED]

    @property
    def actions(self) -> list[object]:
        return [each["action"] for each in self.trips]

    def record(self, event_type: str, event: CallStarted | CallFinished) -> list[str]:
        work = JournalBatch(TurnClaim(event.turn, 1), (journal_draft(event_type, event),))
        channel = self.channel
        options = {"ruleset": channel.ruleset, "at": at(channel.now), "new_id": channel.new_id}
        return channel.took(record_permitted(channel.fold, work, **options))

    def asks_model(self, agent: str) -> None:
        self.index += 1
        self.record(EV_CALL_STARTED, CallStarted(f"{self.turn}/{agent}", self.index, MODEL, "d"))
        self.record(EV_CALL_FINISHED, CallFinished(f"{self.turn}/{agent}", self.index, {"text": ""}))

    def message(self, agent: str, *wanted: tuple[str, dict[str, object]]) -> list[str]:
        """What becomes of the calls of one message of the model: `made`, `denied`, `final` or `asked`."""
        self.asks_model(agent)
        return [self.start(agent, tool, args) for tool, args in wanted]

    def call(self, agent: str = "bob", tool: str = "search", **args: object) -> str:
        """What becomes of a call that the model asks for alone."""
        return self.message(agent, (tool, args))[0]

    def start(
        self, agent: str, tool: str, args: dict[str, object], *, poll: tuple[int, float] = (0, 0.0), result: str = ""
    ) -> str:
        self.index += 1
        return self.start_at(self.index, agent, tool, args, poll=poll, result=result)

    def start_at(
        self,
        index: int,
        agent: str,
        tool: str,
        args: dict[str, object],
        *,
        poll: tuple[int, float] = (0, 0.0),
        result: str = "",
    ) -> str:
        turn = f"{self.turn}/{agent}"
        started = CallStarted(
            turn, index, tool, "d", args, same=call_key(tool, args), poll_max=poll[0], poll_seconds=poll[1]
        )
        recorded = self.record(EV_CALL_STARTED, started)
        match recorded:
            case ["call.started"]:
                if result:
                    returned = {"returned": {"text": "so"}}
                    self.record(EV_CALL_FINISHED, CallFinished(turn, index, returned, progress=result))
                return "made"
            case ["approval.requested", *_]:
                return "asked"
            case ["call.started", "call.failed", *_]:
                failed = next(each for each in reversed(self.log) if each.event_type == "antiphon.call.failed")
                return "final" if failed.event_data.get("final") else "denied"
            case _:
                raise AssertionError(recorded)

    @property
    def last_error(self) -> str:
        failed = next(each for each in reversed(self.log) if each.event_type == "antiphon.call.failed")
        return str(failed.event_data["error"])

    def next_turn(self) -> None:
        self.turn += 1
        self.index = 0


def repeated(times: int, act: Callable[[], str]) -> list[str]:
    """What becomes of the same act, so many times."""
    return [act() for _ in range(times)]
