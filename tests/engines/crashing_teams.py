"""Teams to crash: what a person says to them, what their models answer to it, and a world that counts.

A model acts by what it is shown: the last thing that was said, and how far the turn has come. Whoever is asked in
somebody else's place says so, which is another story. Tasks are given to agents of the same world.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from antiphon import (
    Agent,
    Asked,
    Intent,
    Message,
    Progress,
    Reply,
    Request,
    Steps,
    SummarisedTranscript,
    TurnChannel,
    TurnFailed,
    Usage,
    calls,
    delegate,
    says,
    set_context,
    tool,
)
from antiphon.agents.tool import Tool
from antiphon.testing import ManualClock

LEAD, MIDDLE, LEAF = "support", "billing", "tax"
CHECKER, CLERK = "checker", "clerk"
TTL = 60.0
SPENT = Usage(10, 1)
"""What every answer of a model takes."""

Answer = Reply | list[Reply] | Callable[[Request], Reply]
Line = tuple[str, Answer]
"""Who is to be asked, and what it answers."""
Script = Mapping[str, Sequence[Line]]
"""To each thing that is said, what is answered, from the first model to the last. An intent takes a place too."""


class World:
    """What stands outside: models and tools that count how often they are asked, and a ledger that honours keys."""

    def __init__(self, script: Script, clock: ManualClock, *, keyless: bool = False) -> None:
        self._script, self._clock, self._keyless = script, clock, keyless
        self.asked: Counter[str] = Counter()
        self.ledger: dict[str, tuple[str, int]] = {}
        self.agents: dict[str, Agent] = {}

    def agent(self, name: str, *more: Tool, **options: object) -> Agent:
        """An agent whose model goes by the script. It has the usual tools, and these."""
        model = Model(self, name, calls_tools=bool(options.pop("calls_tools", True)))
        tools = [*self._tools(name), *more]
        self.agents[name] = Agent(name, model=model, tools=tools, **options)  # type: ignore[arg-type]
        return self.agents[name]

    def answer(self, name: str, request: Request) -> list[Reply]:
        """What the script has for this one, here and now."""
        self.asked[f"{name} model"] += 1
        said = next(message.text for message in reversed(request.history) if message.role == "user")
        who, answer = self._script[said][sum(isinstance(item, Asked) for item in request.exchange)]
        if who != name:
            return [says(f"{name} was asked instead of {who}")]
        answer = answer(request) if callable(answer) else answer
        return answer if isinstance(answer, list) else [answer]

    def summarise(self, messages: Sequence[Message]) -> Reply:
        """How many messages were summed up, and which the last one was."""
        self.asked["summary"] += 1
        return says(f"{len(messages)} messages, up to {messages[-1].text!r}", usage=SPENT)

    def looking(self, name: str) -> Callable[[Steps], Steps]:
        """A patcher: before it is asked anything an agent looks around, which is not done twice."""

        async def look_around(progress: Progress) -> Progress:
            self.asked[f"{name} step:look_around"] += 1
            return progress.replace(system=f"{progress.system} All is well.", notes={"seen": "all"})

        def remember(progress: Progress) -> Progress:
            return progress.replace(notes={**progress.notes, "remembered": True})

        return lambda steps: steps.insert_after("current_active_agent", look_around).insert_before(
            "call_tools", remember
        )

    def _tools(self, name: str) -> list[Tool]:
        asked = self.asked

        @tool
        async def look_up(order: str) -> str:
            asked[f"{name} look_up"] += 1
            return f"order {order}: 100"

        @tool
        async def note(text: str, channel: TurnChannel) -> str:
            asked[f"{name} note"] += 1
            set_context(channel, noted=f"{text}, says {channel.agent}")
            return f"noted: {text}"

        @tool
        async def pay(order: str, cents: int, idempotency_key: str) -> str:
            asked[f"{name} pay"] += 1
            key = f"payment {len(self.ledger)}" if self._keyless else idempotency_key
            self.ledger.setdefault(key, (order, cents))
            return "paid"

        @tool(timeout=None)
        async def dawdle(seconds: float = TTL + 1) -> str:
            asked[f"{name} dawdle"] += 1
            self._clock.advance(seconds)
            await asyncio.Event().wait()
            return "never"

        return [look_up, note, pay, dawdle]

    def hurry(self, agent: Agent) -> Tool:
        """A tool that gives a task, and has no time."""

        @tool(timeout=TTL / 2)
        async def hurry(text: str, channel: TurnChannel) -> str:
            self.asked[f"{channel.agent} hurry"] += 1
            return (await channel.delegate(agent, text)).text

        return hurry

    def survey(self, *agents: Agent) -> Tool:
        """A tool that gives a task to each of these, all at once, and tells how each went."""

        async def ask(channel: TurnChannel, agent: Agent, text: str) -> str:
            try:
                return (await channel.delegate(agent, f"{text} {agent.name}?")).text
            except TurnFailed as failed:
                return f"{agent.name}: {failed.reason}"

        @tool(timeout=None)
        async def survey(text: str, channel: TurnChannel) -> list[str]:
            self.asked[f"{channel.agent} survey"] += 1
            return await asyncio.gather(*(ask(channel, agent, text) for agent in agents))

        return survey


class Model:
    """What speaks for an agent of a world."""

    def __init__(self, world: World, name: str, *, calls_tools: bool) -> None:
        self._world, self._name, self.calls_tools = world, name, calls_tools

    async def __call__(self, request: Request) -> Reply:
        answers = self._world.answer(self._name, request)
        wanted = tuple(call for answer in answers for call in answer.calls)
        return Reply("".join(answer.text for answer in answers), wanted, SPENT)


@dataclass(frozen=True)
class Story:
    """What is said to an agent, message by message, and what its team makes of it."""

    agent: Callable[[World], Agent]
    says: tuple[str, ...]
    script: Script
    answers: tuple[str, ...]
    """What comes of it."""
    active: str = ""
    """Who answers in the end, if not whoever was asked."""
    paid: int = 1
    """How many payments there are."""
    tasks: tuple[str, ...] = ()
    """How the tasks end, each before those that it gives itself: `completed`, `failed` or `expired`."""


def fails(request: Request) -> Reply:
    raise ConnectionError("nobody is there")


def reads(request: Request) -> Reply:
    """A model that repeats what it was told last, so that the log says what it has seen."""
    return says(f"heard: {request.messages[-1].text}")


def of_three(world: World, *more: Tool, **options: object) -> Agent:
    """Whoever is asked, with one below, and one below that."""
    leaf = world.agent(LEAF)
    middle = world.agent(MIDDLE, agents=[leaf])
    return world.agent(LEAD, *more, agents=[middle], **options)


def with_intents(world: World) -> Agent:
    intents = [Intent("what of order 7", tool="look_up", args={"order": "7"}), Intent("my bill", agent=MIDDLE)]
    return of_three(world, intents=intents)


def with_a_step(world: World) -> Agent:
    leaf = world.agent(LEAF, patcher=world.looking(LEAF))
    return world.agent(LEAD, agents=[leaf], patcher=world.looking(LEAD))


def summing_up(world: World) -> Agent:
    memory = SummarisedTranscript(world.summarise, recent_n=1)
    return world.agent(LEAD, agents=[world.agent(LEAF)], memory=memory)


def with_a_talker(world: World) -> Agent:
    return world.agent(LEAD, agents=[world.agent(LEAF, calls_tools=False)])


def giving_tasks(world: World) -> Agent:
    """The leaf gives tasks to a checker, which gives some to a clerk, and to the clerk itself."""
    clerk = world.agent(CLERK)
    checker = world.agent(CHECKER, delegate(clerk))
    leaf = world.agent(LEAF, delegate(checker), delegate(clerk))
    return world.agent(LEAD, agents=[leaf])


def giving_time(world: World) -> Agent:
    return world.agent(LEAD, delegate(world.agent(CHECKER), ttl=TTL))


def asking_around(world: World) -> Agent:
    return world.agent(LEAD, world.survey(world.agent(CHECKER), world.agent(CLERK)))


DOWN, DEEPER = calls(f"transfer_to_{MIDDLE}"), calls(f"transfer_to_{LEAF}", {"reason": "VAT"})
LOOKS, NOTES = calls("look_up", {"order": "7"}), calls("note", {"text": "VAT"})
PAYS = [calls("pay", {"order": "7", "cents": 100}), calls("note", {"text": "paid"})]
HELP = calls("request_help", {"reason": "which rate?"})
CHECK = calls(f"delegate_to_{CHECKER}", {"task": "Check it."})
FILE = calls(f"delegate_to_{CLERK}", {"task": "File it."})

STORIES = {
    "three levels": Story(
        of_three,
        ("Refund order 7.", "And now?", "Thanks."),
        {
            "Refund order 7.": (
                (LEAD, [LOOKS, DOWN]),
                (MIDDLE, [NOTES, DEEPER]),
                (LEAF, PAYS),
                (LEAF, [LOOKS, HELP]),
                (MIDDLE, NOTES),
                (MIDDLE, says("Refunded.")),
            ),
            "And now?": (
                (MIDDLE, HELP),
                (LEAD, [LOOKS, calls("get_current_active_agent")]),
                (LEAD, DOWN),
                (MIDDLE, reads),
            ),
            "Thanks.": ((MIDDLE, reads),),
        },
        ("Refunded.", f"heard: Conversation transferred to {MIDDLE}.", "heard: Thanks."),
        active=f"{LEAD}/{MIDDLE}",
    ),
    "a mention": Story(
        of_three,
        (f"@{LEAF} Pay order 7.", "And now?", "@lead Thanks."),
        {
            "Pay order 7.": ((LEAF, PAYS), (LEAF, says("Paid."))),
            "And now?": ((LEAF, HELP), (MIDDLE, LOOKS), (MIDDLE, DEEPER), (LEAF, reads)),
            "Thanks.": ((LEAD, NOTES), (LEAD, reads)),
        },
        ("Paid.", f"heard: Conversation transferred to {LEAF}.", "heard: noted: VAT"),
    ),
    "intents": Story(
        with_intents,
        ("What of order 7?", "My bill!"),
        {
            "What of order 7?": ((LEAD, []), (LEAD, PAYS), (LEAD, reads)),
            "My bill!": ((LEAD, []), (MIDDLE, [NOTES, DEEPER]), (LEAF, LOOKS), (LEAF, reads)),
        },
        ("heard: noted: paid", "heard: order 7: 100"),
        active=f"{LEAD}/{MIDDLE}/{LEAF}",
    ),
    "an async step": Story(
        with_a_step,
        ("Refund order 7.", "And now?"),
        {
            "Refund order 7.": ((LEAD, [LOOKS, DEEPER]), (LEAF, PAYS), (LEAF, reads)),
            "And now?": ((LEAF, NOTES), (LEAF, reads)),
        },
        ("heard: noted: paid", "heard: noted: VAT"),
        active=f"{LEAD}/{LEAF}",
    ),
    "an answer put right": Story(
        lambda world: of_three(world, output=list[int]),
        ("Which orders?", "And else?"),
        {
            "Which orders?": ((LEAD, PAYS), (LEAD, says("Seven.")), (LEAD, says("[7]"))),
            "And else?": ((LEAD, DOWN), (MIDDLE, says("None.")), (MIDDLE, says("None at all."))),
        },
        ("[7]", "None at all."),
        active=f"{LEAD}/{MIDDLE}",
    ),
    "a summary": Story(
        summing_up,
        ("Refund order 7.", "And now?", "Thanks."),
        {
            "Refund order 7.": ((LEAD, [*PAYS, DEEPER]), (LEAF, says("Refunded."))),
            "And now?": ((LEAF, HELP), (LEAD, LOOKS), (LEAD, reads)),
            "Thanks.": ((LEAD, lambda request: says(request.history[0].text)),),
        },
        (
            "Refunded.",
            "heard: order 7: 100",
            "[What the 4 messages before came to]\n3 messages, up to 'heard: order 7: 100'",
        ),
    ),
    "one that only talks": Story(
        with_a_talker,
        ("Refund order 7.", "And now?"),
        {
            "Refund order 7.": ((LEAD, [*PAYS, DEEPER]), (LEAF, reads)),
            "And now?": ((LEAF, reads),),
        },
        (f"heard: Conversation transferred to {LEAF}.", "heard: And now?"),
        active=f"{LEAD}/{LEAF}",
    ),
    "a task": Story(
        giving_tasks,
        ("Refund order 7.", "And now?"),
        {
            "Refund order 7.": ((LEAD, [LOOKS, DEEPER]), (LEAF, CHECK), (LEAF, reads)),
            "Check it.": ((CHECKER, LOOKS), (CHECKER, [*PAYS, FILE]), (CHECKER, reads)),
            "File it.": ((CLERK, NOTES), (CLERK, reads)),
            "And now?": ((LEAF, [CHECK, FILE]), (LEAF, reads)),
        },
        ("heard: heard: heard: noted: VAT", "heard: heard: noted: VAT"),
        active=f"{LEAD}/{LEAF}",
        paid=2,
        tasks=("completed",) * 5,
    ),
    "a task that fails": Story(
        giving_time,
        ("Refund order 7.", "And now?"),
        {
            "Refund order 7.": ((LEAD, PAYS), (LEAD, reads)),
            "And now?": ((LEAD, CHECK), (LEAD, reads)),
            "Check it.": ((CHECKER, LOOKS), (CHECKER, fails)),
        },
        ("heard: noted: paid", "heard: TurnFailed: model_error: ConnectionError: nobody is there"),
        tasks=("failed",),
    ),
    "a task that expires": Story(
        giving_time,
        ("Refund order 7.", "And now?"),
        {
            "Refund order 7.": ((LEAD, PAYS), (LEAD, reads)),
            "And now?": ((LEAD, CHECK), (LEAD, reads)),
            "Check it.": ((CHECKER, LOOKS), (CHECKER, calls("dawdle"))),
        },
        ("heard: noted: paid", "heard: TurnFailed: expired"),
        tasks=("expired",),
    ),
    "tasks side by side": Story(
        asking_around,
        ("Refund order 7.",),
        {
            "Refund order 7.": ((LEAD, calls("survey", {"text": "All right,"})), (LEAD, reads)),
            f"All right, {CHECKER}?": ((CHECKER, LOOKS), (CHECKER, PAYS), (CHECKER, says("yes"))),
            f"All right, {CLERK}?": ((CLERK, NOTES), (CLERK, fails)),
        },
        (f'heard: ["yes","{CLERK}: model_error"]',),
        tasks=("completed", "failed"),
    ),
}
