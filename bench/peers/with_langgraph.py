"""LangGraph's worker: graphs over `add_messages`, and a ring without, kept by its SqliteSaver.

The saver puts its file into write-ahead mode; synchronous is FULL, the default of SQLite: each of its commits is
synced. An exchange is START → reply → END without a model: all variants invoke the graph once an exchange, one message
in and one out, on one thread. A turn is START → model → tools → model → END with its ToolNode, invoked once a turn
through its synchronous interface, which is the cheaper one. All four messages are kept, in the state, of which a copy
is stored with every step; a turn that was cut off can go on from the last one. The model is shown all of it.

A handover is START → lead → expert → END, where the lead goes on with a `Command`: a model that takes no time is called
by neither, so what is measured is two nodes and the state. Nothing stays with the expert; the next turn begins with
the lead.

A round robin is a ring of four nodes, a → b → c → d → a, invoked once for all turns: a step is a turn, and the edge
after the fourth leads to END when no turn is left. The state is the last text and how many turns are left, so each text
is kept in what is stored of its step. That is its cheapest way: a state that held every text would be stored whole with
every step. Nobody is notified of anything; the next node is run.

- `sync`: durability `sync`, with which a step is stored before the next one begins. Its default, `async`, stores the
  same and costs about the same here, and promises less.
- `exit`: durability `exit`: stored once, when the invocation ends, which is what is cheapest.
- `delta`: durability `sync` over its DeltaChannel (beta), which stores what was added instead of everything.
- `memory`: its InMemorySaver, durability `sync`; nothing is kept. For turns and round robins only.

Turns know `memory` and `sync`, which is some nine syncs a turn, and so do round robins, which is two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

from bench.peers.script import ANSWER, ARGUMENTS, EXPERT, MESSAGES, PROMPT, TEAM, TOOL, WHAT_IT_DOES, found, question
from bench.peers.stopwatch import Asked, Stopwatch, asked, size_of

TEXT, SHORT_TEXT = "x" * 200, "x" * 100


class Whole(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Added(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def reply(_: Whole | Added) -> dict[str, list[AIMessage]]:
    return {"messages": [AIMessage(SHORT_TEXT)]}


def exchange(want: Asked) -> None:
    """Question and answer in turns: so many messages in all."""
    graph = StateGraph(Added if want.store == "delta" else Whole)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")
    graph.add_edge("reply", END)
    durability = "exit" if want.store == "exit" else "sync"
    said: list[AnyMessage] = []
    with SqliteSaver.from_conn_string(str(want.folder / "saved.db")) as saver:
        saver.setup()
        app = graph.compile(checkpointer=saver)
        thread = {"configurable": {"thread_id": "one"}}
        watch = Stopwatch()
        for _ in range(want.count // 2):
            said = app.invoke({"messages": [HumanMessage(SHORT_TEXT)]}, thread, durability=durability)["messages"]
        watch.stop()
    assert len(said) == want.count
    watch.tell(want.count, stored=size_of(want.folder))


@tool(TOOL, description=WHAT_IT_DOES)
def look_up(order: str) -> str:
    return found(order)


def quick() -> Callable[[list[AnyMessage]], AIMessage]:
    """A model that asks for the tool, then answers."""
    ids = map(str, itertools.count())

    def reply(messages: list[AnyMessage]) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage(ANSWER)
        return AIMessage("", tool_calls=[{"name": TOOL, "args": ARGUMENTS, "id": next(ids)}])

    return reply


def agent() -> StateGraph:
    """The loop of its documentation: the model, its tools, and back until it asks for none."""
    model, system = quick(), SystemMessage(PROMPT)

    def ask(state: Whole) -> dict[str, list[AIMessage]]:
        return {"messages": [model([system, *state["messages"]])]}

    graph = StateGraph(Whole)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([look_up]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph


def saver_for(want: Asked) -> AbstractContextManager[BaseCheckpointSaver[str]]:
    if want.store == "memory":
        return InMemorySaver()
    return SqliteSaver.from_conn_string(str(want.folder / "saved.db"))


def turns(want: Asked, graph: Callable[[], StateGraph] = agent) -> None:
    """So many turns on one thread, and one before that does not count."""
    said: list[AnyMessage] = []
    with saver_for(want) as saver:
        app = graph().compile(checkpointer=saver)
        thread = {"configurable": {"thread_id": "one"}}

        def turn(number: int) -> list[AnyMessage]:
            return app.invoke({"messages": [HumanMessage(question(number))]}, thread, durability="sync")["messages"]

        turn(0)
        watch = Stopwatch()
        for number in range(1, want.count + 1):
            said = turn(number)
        watch.stop()
    assert len(said) == MESSAGES * (want.count + 1)
    assert said[-1].content == ANSWER
    watch.tell(want.count, stored=size_of(want.folder))


def team() -> StateGraph:
    """A node that hands over with a command, as its documentation shows, and one that answers."""
    ids, system = map(str, itertools.count()), SystemMessage(PROMPT)

    def lead(state: Whole) -> Command[str]:
        assert [system, *state["messages"]]
        call = {"name": f"transfer_to_{EXPERT}", "args": {}, "id": next(ids)}
        moved = ToolMessage(f"Transferred to {EXPERT}.", tool_call_id=call["id"])
        return Command(goto=EXPERT, update={"messages": [AIMessage("", tool_calls=[call]), moved]})

    def expert(state: Whole) -> dict[str, list[AIMessage]]:
        assert [system, *state["messages"]]
        return {"messages": [AIMessage(ANSWER)]}

    graph = StateGraph(Whole)
    graph.add_node("lead", lead, destinations=(EXPERT,))
    graph.add_node(EXPERT, expert)
    graph.add_edge(START, "lead")
    graph.add_edge(EXPERT, END)
    return graph


class Ring(TypedDict):
    text: str
    left: int


def speak(state: Ring) -> Ring:
    return {"text": TEXT, "left": state["left"] - 1}


def ring() -> StateGraph:
    """Four nodes, each after the other, until no turn is left."""
    graph = StateGraph(Ring)
    for name in TEAM:
        graph.add_node(name, speak)
    for name, after in itertools.pairwise((START, *TEAM)):
        graph.add_edge(name, after)
    graph.add_conditional_edges(TEAM[-1], lambda state: TEAM[0] if state["left"] else END, [TEAM[0], END])
    return graph


def robin(want: Asked) -> None:
    """So many turns in one invocation, full rounds only; a round before that does not count."""
    assert want.count % len(TEAM) == 0
    with saver_for(want) as saver:
        app = ring().compile(checkpointer=saver)
        config = {"configurable": {"thread_id": "one"}, "recursion_limit": want.count + 10}

        def turns(count: int) -> Ring:
            return app.invoke({"text": "", "left": count}, config, durability="sync")

        turns(len(TEAM))
        watch = Stopwatch()
        said = turns(want.count)
        watch.stop()
    assert said == {"text": TEXT, "left": 0}
    watch.tell(want.count, stored=size_of(want.folder))


WORKS = {"exchange": exchange, "handovers": partial(turns, graph=team), "robin": robin, "turns": turns}

if __name__ == "__main__":
    WORKS[asked().work](asked())
