"""Writes the stores that later code must be able to read: `python -m tests.golden.make_stores FOLDER`.

Rule 1: only what `antiphon` and `antiphon.testing` export is used, so that the script runs on any version of the
        package. The one exception is imported history, which only the server writes: see `import_history`.
Rule 2: a store that was committed is never written anew; another way to record something gets another store.
Rule 3: `quiet.db` has a channel of every kind, at rest; `long.db` one that has a snapshot; `crashed.db` is left behind
        by a process that ends while two turns are in progress.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from antiphon import (
    Agent,
    AgentsTarget,
    AgentTarget,
    BranchFailed,
    Channel,
    ContextEquals,
    ConversationRouter,
    Denied,
    Finish,
    FromSpeaker,
    Handoff,
    Hub,
    Message,
    ModelError,
    Once,
    OutboundReply,
    Reply,
    RevertToInitiatorTarget,
    RoutingConditions,
    RoutingRule,
    ScriptedModel,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    TurnChannel,
    TurnFailed,
    calls,
    delegate,
    get_conversation_state,
    says,
    set_context,
    set_conversation_state,
    tool,
)
from antiphon.testing import ManualClock

CRASHING = "crash"
"""The argument with which this script plays the process that ends while two turns are in progress."""
ROUNDS_UNTIL_SNAPSHOT = 43


@tool
def look_up(word: str) -> str:
    """Look something up."""
    return f"{word} is in the book"


@tool
def pay(order: str, idempotency_key: str) -> str:
    """Pay for an order."""
    return f"paid {order}"


@tool
def classify(topic: str, channel: TurnChannel) -> str:
    """Write down what it is about."""
    set_context(channel, topic=topic)
    return "noted"


@tool
def escalate() -> str:
    """Ask for more opinions."""
    return "noted"


@tool
def pass_on(to: str) -> Handoff:
    """Let another participant continue."""
    return Handoff(to, reason="knows more", summary="The case as it stands.")


@tool
def finish() -> Finish:
    """There is nothing left to do."""
    return Finish("solved")


async def until_quiet(channel: Channel) -> None:
    """Wait until no turn is left that could run."""
    for _ in range(2000):
        await asyncio.sleep(0.005)
        if channel.state.ended or all(turn.doubts for turn in channel.state.owed):
            return
    raise TimeoutError(f"{channel.channel_id} still owes {channel.state.owed}")


async def talk(channel: Channel, *texts: str) -> None:
    for text in texts:
        await channel.send(text)
        await until_quiet(channel)


async def make_conversations(hub: Hub, clock: ManualClock) -> dict[str, str]:
    """Conversations: answered, failed, cancelled, forked, erased, expired, paused, in private."""
    alice, dana = await hub.register("alice"), await hub.register("dana", kind="human")
    asked = asyncio.Event()

    async def never(request: object) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    script = [calls("look_up", {"word": "bee"}), says("A bee is an insect."), ModelError("no answer"), says("Hello.")]
    await hub.register(Agent("bob", ScriptedModel(script), tools=[look_up]))
    channel = await alice.open(target="bob", context_vars={"lang": "en"}, say="What is a bee?")
    await until_quiet(channel)
    await channel.set_context(mood="good", age=3)
    await channel.delete_context("lang")
    await talk(channel, "And a wasp?")
    await talk(channel, "Are you there?")
    answered = next(each for each in await hub.log(channel.channel_id) if each.event_type == "ag2.msg.text")
    await hub.register(Agent("bob", ScriptedModel(["Bees again."], by="position"), tools=[look_up]))
    fork = await channel.fork(at=answered.sequence)
    await until_quiet(fork)

    await hub.register(Agent("sloth", model=never))
    cancelled = await dana.open(target="sloth")
    await cancelled.send("Wake up.")
    await asked.wait()
    await cancelled.cancel("too slow")
    await until_quiet(cancelled)

    closed = await alice.open(target="dana", ttl=600)
    await closed.send("A secret.")
    await closed.close("done")
    erased = await alice.open(target="dana", knobs={"writers": {"secret": ["alice"]}})
    await erased.send("Another secret.")
    await erased.close("done")
    await hub.erase(erased.channel_id, by="dana")
    expired = await alice.open(target="dana", ttl=60)
    await expired.send("Soon over.")
    await clock.advance(60)

    failing = await hub.register(Agent("left", ScriptedModel([])))
    await hub.register(Agent("right", ScriptedModel([ModelError("no answer")])))
    paused = await failing.open(target="right")
    await talk(paused, "Go on alone.")
    return {
        "conversation": channel.channel_id,
        "forked": fork.channel_id,
        "cancelled": cancelled.channel_id,
        "closed": closed.channel_id,
        "erased": erased.channel_id,
        "expired": expired.channel_id,
        "paused": paused.channel_id,
    }


async def make_rounds(hub: Hub, clock: ManualClock) -> dict[str, str]:
    """Consulting and discussions, with expectations, an interjection, and an invitation that is rejected."""
    erin, fred = await hub.register("erin"), await hub.register("fred", kind="human")
    await hub.register("gus", accept=lambda invitation: False)
    await hub.register(Agent("expert", ScriptedModel([says("42."), says("I agree."), says("I still agree.")])))
    consulting = await erin.open(type="consulting", target="expert")
    await talk(consulting, "What is the answer?")
    knobs = {"expectations": [{"name": "turn_within", "seconds": 30, "handler": "warn"}], "interjectors": ["fred"]}
    discussion = await erin.open(type="discussion", target=["expert", "fred"], knobs=knobs)
    await talk(discussion, "Is it so?")
    held = await fred.channel(discussion.channel_id)
    await talk(held, "I think so.")
    await talk(held, "One more thing.")
    await clock.advance(31)
    await discussion.send("Then again, in private.", audience=["expert"])
    await until_quiet(discussion)
    silent = {"expectations": [{"name": "turn_within", "seconds": 20, "handler": "auto_close"}]}
    overdue = await erin.open(type="discussion", target="expert", knobs=silent)
    await clock.advance(21)
    try:
        await erin.open(target="gus")
    except Denied as denied:
        rejected = str(denied.channel_id)
    return {
        "consulting": consulting.channel_id,
        "discussion": discussion.channel_id,
        "overdue": overdue.channel_id,
        "rejected": rejected,
    }


def workflow_graph() -> TransitionGraph:
    return TransitionGraph(
        "editor",
        [
            Transition(Once(FromSpeaker("editor")), AgentTarget("triage")),
            Transition(FromSpeaker("triage") & ToolCalled("escalate"), AgentsTarget(["tax", "law"])),
            Transition(BranchFailed("law"), AgentTarget("triage")),
            Transition(ContextEquals("topic", "boats") & FromSpeaker("triage"), StayTarget()),
            Transition(FromSpeaker("tax"), RevertToInitiatorTarget()),
        ],
        TerminateTarget("settled"),
        max_turns=9,
    )


async def make_workflows(hub: Hub, clock: ManualClock) -> dict[str, str]:
    """Workflows: a group of which one fails, context, handoffs, an interjection, a finish, the limit of turns."""
    editor, judge = await hub.register("editor"), await hub.register("judge", kind="human")
    triage = [
        calls("classify", {"topic": "tax"}),
        calls("escalate"),
        says("Beyond me."),
        calls("pass_on", {"to": "tax"}),
    ]
    await hub.register(Agent("triage", ScriptedModel(triage), tools=[classify, escalate, pass_on]))
    await hub.register(
        Agent("tax", ScriptedModel([says("No tax."), calls("pass_on", {"to": "zoe"}), says("Mine.")]), tools=[pass_on])
    )
    await hub.register(Agent("law", ScriptedModel([ModelError("no answer")])))
    knobs = {
        "graph": workflow_graph().to_dict(),
        "writers": {"topic": ["triage", "editor"]},
        "guards": [{"name": "hop_limit", "most": 3}],
        "expectations": [{"name": "turn_within", "seconds": 60, "handler": "fail"}],
    }
    channel = await editor.open(type="workflow", target=["triage", "tax", "law", "judge"], knobs=knobs)
    await talk(channel, "May I deduct a boat?")
    held = await judge.channel(channel.channel_id)
    await talk(held, "Let me add something.")
    await channel.set_context(topic="boats")
    await talk(channel, "Is that all?")

    limited = TransitionGraph.round_robin(["editor", "ping"], max_turns=4)
    await hub.register(Agent("ping", ScriptedModel(["Pong."] * 4)))
    capped = await editor.open(type="workflow", target="ping", knobs={"graph": limited.to_dict()})
    await talk(capped, "Ping.", "Ping again.")
    waiting = await editor.open(type="workflow", target="ping", knobs={"graph": limited.to_dict()})
    await hub.register(Agent("ender", ScriptedModel([calls("finish", text="That was it.")]), tools=[finish]))
    rounds = TransitionGraph.round_robin(["editor", "ender"], max_turns=4).to_dict()
    finished = await editor.open(type="workflow", target="ender", knobs={"graph": rounds})
    await talk(finished, "Anything else?")
    channels = {"workflow": channel, "capped": capped, "waiting": waiting, "finished": finished}
    return {name: each.channel_id for name, each in channels.items()}


async def make_threads(hub: Hub, clock: ManualClock) -> dict[str, str]:
    """Threads: a team with transfers, a task, a keyed call, a call in doubt, imported history."""
    billing = Agent("billing", ScriptedModel([says("Charged once."), calls("request_help", {"reason": "lost"})]))
    script = [calls("transfer_to_billing", text="One moment."), says("I take over.")]
    chief = Agent("chief", ScriptedModel(script), agents=[billing])
    for text in ("Was I charged twice?", "Are you sure?"):
        team = await chief.invoke(text, thread_id="team", hub=hub)

    librarian = Agent("librarian", ScriptedModel([calls("look_up", {"word": "bees"}), says("Three.")]), tools=[look_up])
    ask = [calls("delegate_to_librarian", {"task": "How many?"}), says("We have three.")]
    given = await Agent("desk", ScriptedModel(ask), tools=[delegate(librarian)]).invoke("Any books?", hub=hub)
    log = await hub.log(given.channel_id)
    task = next(each.event_data["task"] for each in log if each.event_type == "ag2.task.started")

    clerk = Agent("clerk", ScriptedModel([calls("pay", {"order": "7"}), says("Paid.")]), tools=[pay])
    keyed = await clerk.invoke("Pay for 7.", thread_id="keyed", hub=hub)

    called = asyncio.Event()

    @tool(idempotency="unsafe", timeout=5)
    async def print_letter(to: str) -> str:
        """Print a letter."""
        called.set()
        await asyncio.Event().wait()
        return ""

    secretary = Agent("secretary", ScriptedModel([calls("print_letter", {"to": "Ann"})]), tools=[print_letter])
    asking = asyncio.create_task(secretary.invoke("Write to Ann.", thread_id="doubt", hub=hub))
    await called.wait()
    await clock.advance(5)
    with suppress(TurnFailed):  # it waits for a person
        await asking
    doubt = await secretary.channel("doubt", hub)
    imported = await import_history(hub, Agent("oracle", ScriptedModel(["As I said."])))
    return {
        "team": team.channel_id,
        "tasks": given.channel_id,
        "task": str(task),
        "keyed": keyed.channel_id,
        "doubt": doubt.channel_id,
        "imported": imported,
    }


async def import_history(hub: Hub, agent: Agent) -> str:
    """A thread that begins with a conversation held elsewhere."""
    from antiphon.runtime.agent import ImportedHistory, channel_of

    messages = (Message("user", "Is it so?"), Message("assistant", "It is."))
    channel = await channel_of(hub, agent, "imported", before=ImportedHistory(messages, context_vars={"a": 1}))
    await talk(channel, "Really?")
    return channel.channel_id


async def make_long(hub: Hub) -> dict[str, str]:
    """A conversation that is long enough to have a snapshot, and goes on after it."""
    alice = await hub.register("alice")
    await hub.register(Agent("bob", ScriptedModel([f"Answer {number}." for number in range(ROUNDS_UNTIL_SNAPSHOT)])))
    channel = await alice.open(target="bob")
    for number in range(ROUNDS_UNTIL_SNAPSHOT):
        await talk(channel, f"Question {number}?")
    return {"long": channel.channel_id}


async def crash(url: str) -> None:
    """Leave two turns behind: one in a keyed call after a finished one, one in an unsafe call. Does not return."""
    in_flight: list[str] = []

    async def end_when_both_started(name: str) -> str:
        in_flight.append(name)
        if len(in_flight) == 2:
            os._exit(0)
        await asyncio.Event().wait()
        return ""

    @tool
    async def pay(order: str, idempotency_key: str) -> str:
        """Pay for an order."""
        return await end_when_both_started("pay")

    @tool(idempotency="unsafe")
    async def print_letter(to: str) -> str:
        """Print a letter."""
        return await end_when_both_started("print_letter")

    hub = await Hub.open(url, clock=ManualClock())
    alice = await hub.register("alice")
    script = [calls("look_up", {"word": "7"}), calls("pay", {"order": "7"}), says("Paid.")]
    await hub.register(Agent("clerk", ScriptedModel(script, by="position"), tools=[look_up, pay]))
    script = [calls("print_letter", {"to": "Ann"}), says("Posted.")]
    await hub.register(Agent("printer", ScriptedModel(script, by="position"), tools=[print_letter]))
    for name in ("clerk", "printer"):
        channel = await alice.open(target=name)
        await channel.send("Please begin.")
    await asyncio.sleep(60)
    raise TimeoutError("the calls were not made")


async def make_quiet(folder: Path) -> dict[str, str]:
    clock = ManualClock()
    names: dict[str, str] = {}
    async with Hub.open(f"sqlite:///{folder / 'quiet.db'}", clock=clock) as hub:
        for make in (make_conversations, make_rounds, make_workflows, make_threads):
            names |= await make(hub, clock)
        await write_logs(hub, folder, names)
    return names


async def make_routed(hub: Hub) -> dict[str, str]:
    """A routed conversation: rules, handoffs, a hold and its release, an observer, a transport, and no route."""
    taken: list[str] = []

    async def send(reply: OutboundReply) -> None:
        taken.append(reply.text)

    def hand(target: str, **more: str) -> Reply:
        return calls("handoff_conversation", {"target": target, "reason": "its part", "summary": "The case.", **more})

    ann, dana = await hub.register("ann"), await hub.register("dana", kind="human")
    hub.transport("sms", send=send)
    triage = [hand("nobody"), hand("money", next_phase="handling"), says("Hello again."), says("In private.")]
    billing = [says("Paid."), hand("human", channel_escalation="email"), says("Back again."), ModelError("no answer")]
    await hub.register(Agent("triage", ScriptedModel(triage)))
    await hub.register(Agent("billing", ScriptedModel(billing)))
    await hub.register(Agent("watcher", ScriptedModel(["Noted."] * 9)))
    rules = [RoutingRule("billing", RoutingConditions(intents={"billing"})), RoutingRule("absent", priority=9)]
    router = ConversationRouter(rules, supervisor_id="watcher")
    handoff = {"agent_aliases": {"money": "billing"}, "allowed_transitions": {"intake": ["handling"]}}
    knobs = {"router": router.to_dict(), "handoff": handoff}
    channel = await ann.open(type="routed", target=["triage", "billing", "watcher", "dana"], knobs=knobs)
    await talk(channel, "Does anybody hear me?")
    await channel.send("My invoice.", transport="sms", source="+49", addressed_to="triage", message_id="m1")
    await until_quiet(channel)
    await channel.send("A person, please.", transport="sms", source="+49")
    await until_quiet(channel)
    held = await dana.channel(channel.channel_id)
    await talk(held, "I am here.")
    await held.release(to="triage")
    await talk(channel, "Thank you.")
    await channel.send("Between us.", audience=["triage"])
    await until_quiet(channel)
    state = get_conversation_state(held)
    await set_conversation_state(held, state.transition(to_phase="followup", to_agent="billing", reason="known"))
    await channel.send("And now?", set={"urgent": True})
    await until_quiet(channel)
    return {"routed": channel.channel_id}


async def make_conversation_store(folder: Path) -> None:
    """Write the store of the routed conversation, and add its channel to those that are known."""
    async with Hub.open(f"sqlite:///{folder / 'routed.db'}", clock=ManualClock()) as hub:
        names = await make_routed(hub)
        await asyncio.sleep(0.2)  # for the last reply to be delivered
        await write_logs(hub, folder, names)
    known = json.loads((folder / "channels.json").read_text())
    (folder / "channels.json").write_text(json.dumps({**known, "routed.db": names}, indent=1) + "\n")
    compact(folder, "routed.db")


def compact(folder: Path, store: str) -> None:
    with sqlite3.connect(folder / store) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("VACUUM")
    connection.close()
    (folder / f"{store}-owner").unlink()


async def make_all(folder: Path) -> None:
    """Write the stores at rest, what all channels are called, and their logs as lines of JSON."""
    url = f"sqlite:///{folder / 'crashed.db'}"
    async with Hub.open(url, engine=None, clock=ManualClock()) as hub:
        crashed = {"-".join(row.participants): row.channel_id for row in await hub.channels()}
        await write_logs(hub, folder, crashed)
    async with Hub.open(f"sqlite:///{folder / 'long.db'}", clock=ManualClock()) as hub:
        long = await make_long(hub)
        await write_logs(hub, folder, long)
    names = {"quiet.db": await make_quiet(folder), "long.db": long, "crashed.db": crashed}
    (folder / "channels.json").write_text(json.dumps(names, indent=1) + "\n")
    for store in names:
        compact(folder, store)
    await make_conversation_store(folder)


async def write_logs(hub: Hub, folder: Path, names: dict[str, str]) -> None:
    for name, channel_id in names.items():
        lines = [json.dumps(asdict(envelope), separators=(",", ":")) for envelope in await hub.log(channel_id)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == CRASHING:
        asyncio.run(crash(sys.argv[2]))
    else:
        crashed = f"sqlite:///{Path(sys.argv[1]) / 'crashed.db'}"
        subprocess.run([sys.executable, "-m", "tests.golden.make_stores", CRASHING, crashed], check=True)
        asyncio.run(make_all(Path(sys.argv[1])))
