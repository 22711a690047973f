"""A turn to crash: four model calls and six tools, one of them a payment by key, and a world that counts."""

from __future__ import annotations

from collections import Counter

from antiphon import Agent, ModelUnavailable, Reply, Request, calls, says, tool

QUESTION = "Please refund order 7."
ANSWER = "Refunded; you get a letter."


class World:
    """What stands outside: models and tools that count how often they are asked, and a ledger that honours keys."""

    def __init__(self, *, rephrasing: bool = False, flaky: bool = False) -> None:
        self._rephrasing, self._flaky = rephrasing, flaky
        self.asked: Counter[str] = Counter()
        self.ledger: dict[str, tuple[str, int, str]] = {}

    async def model(self, request: Request) -> Reply:
        """Answers by what has been exchanged already; if told to, in other words when it is asked the same again.

        A flaky one is there only when it is asked the same for the second time.
        """
        step = sum(item.__class__.__name__ == "Asked" for item in request.exchange)
        self.asked[f"model {step}"] += 1
        if self._flaky and self.asked[f"model {step}"] == 1:
            raise ModelUnavailable("busy", status=529, retry_after=1)
        words = f"in words {self.asked[f'model {step}'] if self._rephrasing else 1}"
        script: list[Reply | list[Reply]] = [
            [calls("look_up", {"order": "7"}), calls("weather", {})],
            [calls("pay", {"order": "7", "cents": 100, "memo": words}), calls("note", {"text": "paid"})],
            [calls("print_letter", {}), calls("archive", {})],
            says(ANSWER),
        ]
        answer = script[step]
        if isinstance(answer, list):
            return Reply(calls=tuple(call for part in answer for call in part.calls))
        return answer

    def agent(self) -> Agent:
        """The agent that lives in this world."""

        def counting(name: str, result: str) -> object:
            @tool(name=name)
            async def count(order: str = "", text: str = "") -> str:
                self.asked[name] += 1
                return result

            return count

        @tool
        async def pay(order: str, cents: int, memo: str, idempotency_key: str) -> str:
            """Pay back."""
            self.asked["pay"] += 1
            self.ledger.setdefault(idempotency_key, (order, cents, memo))
            return "paid"

        others = {"look_up": "order 7: 100", "weather": "rain", "note": "noted", "print_letter": "ok", "archive": "ok"}
        return Agent("bob", model=self.model, tools=[pay, *(counting(*each) for each in others.items())])
