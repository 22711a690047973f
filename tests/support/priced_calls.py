"""A model with a price, a lead that gives many tasks, and what logs say that calls have cost."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon import Agent, Answered, Envelope, Limits, Reply, Request, Usage, calls, delegate, says
from antiphon.core.execution_events import EV_CALL_FINISHED
from antiphon.guards.spending import Spending
from tests.support.inspection import folded
from tests.support.waiting import let_others_run

CENT = 10_000


class PricedModel:
    """A model each call of which costs so much at most, and that counts what it is asked for."""

    def __init__(self, most: int, cost: int | None = None) -> None:
        self.most, self.cost = most, most if cost is None else cost
        self.asked = self.owed = self.peak = 0
        """How often it was asked, and what it has charged, or may charge for what it works on, now and at most."""

    async def __call__(self, request: Request) -> Reply:
        self.asked += 1
        self.owed += self.most
        self.peak = max(self.peak, self.owed)
        await let_others_run(3)
        self.owed += self.cost - self.most
        return says("found", usage=Usage(10, 5, cost=self.cost))

    def most_usage(self, request: Request) -> Usage:
        return Usage(100, 50, cost=self.most)


def asking_all(count: int) -> object:
    """A model that gives so many tasks in one message, and tells then what they came to."""

    async def lead(request: Request) -> Reply | list[Reply]:
        answers = [item.text for item in request.exchange if isinstance(item, Answered)]
        return says("; ".join(answers)) if answers else [calls("delegate_to_helper", {"task": "Go"})] * count

    return lead


def lead_of(provider: PricedModel, count: int, *guards: object) -> Agent:
    helper = Agent("helper", model=provider)
    limits = Limits(tasks=count, tool_calls=count)
    return Agent("lead", model=asking_all(count), tools=[delegate(helper)], guards=guards, limits=limits)  # type: ignore[arg-type]


def of_type(log: Sequence[Envelope], event_type: str) -> list[dict[str, object]]:
    return [each.event_data for each in log if each.event_type == event_type]


def taken(log: Sequence[Envelope]) -> int:
    """What a channel holds for spent or reserved, in millionths of a dollar."""
    [memory] = [each for each in folded(log).memories if isinstance(each, Spending)]
    return sum(totals.micro for totals in memory.run.values())


def cost_of(logs: Sequence[Sequence[Envelope]]) -> int:
    """What the calls of these channels have cost."""
    return sum(int(str(data.get("cost", 0))) for log in logs for data in of_type(log, EV_CALL_FINISHED))


def call_of(data: dict[str, object]) -> tuple[object, object, object]:
    """The call that an entry of a ledger is about."""
    return data["channel"], data["turn"], data["index"]
