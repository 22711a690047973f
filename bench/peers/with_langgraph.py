"""LangGraph's worker: START → reply → END over `add_messages`, kept by its SqliteSaver, no model.

The saver puts its file into write-ahead mode; synchronous is FULL, the default of SQLite: each of its commits is
synced. All variants invoke the graph once an exchange, one message in and one out, on one thread.

- `sync`: durability `sync`, with which a step is stored before the next one begins. Its default, `async`, stores the
  same and costs about the same here, and promises less.
- `exit`: durability `exit`: stored once, when the invocation ends, which is what is cheapest.
- `delta`: durability `sync` over its DeltaChannel (beta), which stores what was added instead of everything.
"""

from __future__ import annotations

from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages

from bench.peers.stopwatch import Asked, Stopwatch, asked, size_of

TEXT = "x" * 100


class Whole(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Added(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def reply(_: Whole | Added) -> dict[str, list[AIMessage]]:
    return {"messages": [AIMessage(TEXT)]}


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
            said = app.invoke({"messages": [HumanMessage(TEXT)]}, thread, durability=durability)["messages"]
        watch.stop()
    assert len(said) == want.count
    watch.tell(want.count, stored=size_of(want.folder))


WORKS = {"exchange": exchange}

if __name__ == "__main__":
    WORKS[asked().work](asked())
