"""The newspaper's counter: a team of two, for `antiphon run` and `antiphon serve`.

Nell greets the customers, and hands those to Gus who want an advertisement. Both are models by rules.
"""

from __future__ import annotations

from story import AD, ADVERTISER, COUNTER, COUNTER_SAYS

from antiphon.agents.call_results import Reply
from antiphon.agents.messages import Request, calls, says
from antiphon.agents.tool import tool
from antiphon.runtime.agent import Agent


@tool
def rate(words: int, days: int = 1) -> str:
    """What an advertisement costs."""
    return f"{words * days} pence"


async def nell(request: Request) -> Reply:
    """Greet, or hand over."""
    return calls(f"transfer_to_{ADVERTISER}") if AD in request.history[-1].text else says(COUNTER_SAYS)


async def gus(request: Request) -> Reply:
    """Look the rate up, and name it."""
    if request.exchange and (told := request.exchange[-1].text).endswith("pence"):
        return says(f"That makes {told}, paid in advance.")
    said = [message.text for message in request.history if message.role == "user"]
    wanted = next(text for text in said if AD in text)
    return calls("rate", {"words": len(wanted.split()), "days": 1 if said[-1] == wanted else 2})


agents = [
    Agent(
        COUNTER,
        model=nell,
        system_prompt="Greet every customer.",
        agents=[Agent(ADVERTISER, model=gus, tools=[rate], description="Takes advertisements.")],
    )
]
