"""Every verb of the server, in one table."""

from __future__ import annotations

from importlib.metadata import version

from antiphon.core.envelope import Envelope
from antiphon.hub.directory import REGISTRY
from antiphon.hub.keys import Key
from antiphon.runtime.erasing import Erasure
from antiphon.server import chat_shapes, shapes
from antiphon.server.agents import invoke, list_agents, stream_invoke
from antiphon.server.approvals import decide, list_approvals
from antiphon.server.channels import (
    cancel_turns,
    change_context,
    close_channel,
    delete_channel,
    list_channels,
    open_channel,
    post_message,
    read_log,
    show_channel,
    subscribe,
)
from antiphon.server.chat import complete_chat, list_models, show_model
from antiphon.server.keyring import list_keys, make_key, revoke_key
from antiphon.server.openapi import Document, document_of
from antiphon.server.verbs import Verb, Visit

CHANNEL = "/channels/{channel_id}"


async def show_health(visit: Visit) -> shapes.Health:
    """That the server is there, and that its store can be read."""
    await visit.hub._desk.store.head(REGISTRY)
    return shapes.Health("ok", version("antiphon"))


async def show_document(visit: Visit) -> Document:
    """This document."""
    return document_of(VERBS)


VERBS: tuple[Verb, ...] = (
    Verb(
        "GET",
        "/health",
        show_health,
        None,
        "Whether the server is there and its store can be used",
        shapes.Health,
        always=True,
    ),
    Verb("GET", "/openapi.json", show_document, None, "This document", Document),
    Verb("GET", "/agents", list_agents, "invoke", "List the agents that can be asked", shapes.AgentList),
    Verb(
        "POST",
        "/agents/{name}/invoke",
        invoke,
        "invoke",
        "Ask an agent, and wait for its answer",
        shapes.Answer,
        takes=shapes.Question,
        refuses=(409, 500, 502, 504),
        waits=True,
    ),
    Verb(
        "POST",
        "/agents/{name}/stream_invoke",
        stream_invoke,
        "invoke",
        "Ask an agent, and be told everything that its turn tells",
        bytes,
        takes=shapes.Question,
        query=shapes.Tokens,
        refuses=(409,),
        streams=True,
    ),
    Verb(
        "GET",
        "/channels",
        list_channels,
        "read",
        "List channels, oldest first",
        shapes.ChannelList,
        query=shapes.ChannelQuery,
    ),
    Verb(
        "POST",
        "/channels",
        open_channel,
        "write",
        "Open a channel with others",
        shapes.ChannelState,
        takes=shapes.Opening,
        status=201,
        refuses=(409,),
    ),
    Verb("GET", CHANNEL, show_channel, "read", "Show a channel as it is now", shapes.ChannelState),
    Verb(
        "DELETE",
        CHANNEL,
        delete_channel,
        "operate",
        "Erase the content of a channel that has ended, and of its tasks",
        Erasure,
        refuses=(409,),
    ),
    Verb("GET", f"{CHANNEL}/log", read_log, "read", "Read a channel's log", shapes.Log, query=shapes.LogQuery),
    Verb(
        "GET",
        f"{CHANNEL}/subscribe",
        subscribe,
        "read",
        "Follow a channel's log as it grows",
        bytes,
        query=shapes.Cursor,
        streams=True,
    ),
    Verb(
        "POST",
        f"{CHANNEL}/messages",
        post_message,
        "write",
        "Say something in a channel",
        Envelope,
        takes=shapes.Message,
        status=201,
        refuses=(409,),
    ),
    Verb(
        "POST",
        f"{CHANNEL}/context",
        change_context,
        "write",
        "Change the context variables of a channel",
        shapes.ChannelState,
        takes=shapes.Changes,
        refuses=(409,),
    ),
    Verb(
        "POST",
        f"{CHANNEL}/close",
        close_channel,
        "write",
        "End a channel",
        shapes.Ended,
        takes=shapes.Reason,
        refuses=(409,),
    ),
    Verb(
        "POST",
        f"{CHANNEL}/cancel",
        cancel_turns,
        "write",
        "Stop the turns that agents owe a channel",
        shapes.Cancelled,
        takes=shapes.Reason,
        refuses=(409,),
    ),
    Verb(
        "GET",
        "/approvals",
        list_approvals,
        "approve",
        "List what waits for a person",
        shapes.ApprovalList,
        query=shapes.ApprovalQuery,
    ),
    Verb(
        "POST",
        "/approvals/{approval_id}",
        decide,
        "approve",
        "Decide what becomes of something that waits for a person",
        shapes.Decided,
        takes=shapes.Choice,
        refuses=(409,),
    ),
    Verb("GET", "/keys", list_keys, "operate", "List the keys", shapes.KeyList),
    Verb("POST", "/keys", make_key, "operate", "Make a key", shapes.KeyMade, takes=shapes.KeyWish, status=201),
    Verb("DELETE", "/keys/{key_id}", revoke_key, "operate", "Revoke a key", Key),
    Verb("GET", "/v1/models", list_models, "invoke", "List the agents as models", chat_shapes.ModelList),
    Verb("GET", "/v1/models/{name}", show_model, "invoke", "Show an agent as a model", chat_shapes.ModelRow),
    Verb(
        "POST",
        "/v1/chat/completions",
        complete_chat,
        "invoke",
        "Answer the last message of a conversation; with `stream` in pieces, as server-sent events",
        chat_shapes.ChatCompletion,
        takes=chat_shapes.ChatRequest,
        refuses=(404, 409, 429, 500, 502, 504),
        waits=True,
    ),
)
