"""Nothing that is recorded of an error holds a secret that the process knows."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import ClassVar

import pytest

from antiphon import (
    AgentTarget,
    Denied,
    Envelope,
    Hub,
    OpenAIModel,
    State,
    TerminateTarget,
    Transition,
    TransitionGraph,
    register_condition,
)
from antiphon.hub.known_secrets import KNOWN_SECRETS, KnownSecrets, redact_text

SECRET = "c4n4ry.that.nobody.may.read"
ENCODED = b64encode(f"xy{SECRET}".encode()).decode()


@register_condition
@dataclass(frozen=True)
class Leaking:
    """Raises an error that repeats a secret."""

    name: ClassVar[str] = "tests.leaking"

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        raise RuntimeError(f"no entry with {SECRET} or {ENCODED}")


async def test_the_error_of_a_rule_is_recorded_without_secrets() -> None:
    KNOWN_SECRETS.know(SECRET)
    table = [Transition(Leaking(), AgentTarget("bob"))]
    graph = TransitionGraph(initial_speaker="ann", transitions=table, default_target=TerminateTarget("done"))
    async with Hub.open("memory:") as hub:
        ann = await hub.register("ann")
        await hub.register("bob")
        channel = await ann.open(type="workflow", target=["bob"], knobs={"graph": graph.to_dict()})
        await channel.send("Hello.")
        log = str(await hub.log(channel.channel_id))
    assert "no entry with *** or " in log
    assert SECRET not in log
    assert ENCODED[4:-4] not in log


async def reject(invite: Envelope) -> bool:
    raise RuntimeError(f"no entry with {SECRET}")


async def test_neither_an_invitation_nor_the_audit_holds_a_secret() -> None:
    KNOWN_SECRETS.know(SECRET)
    async with Hub.open("memory:") as hub:
        ann = await hub.register("ann")
        await hub.register("bob")
        await hub.register("eve", accept=reject)
        with pytest.raises(Denied, match="invite_rejected:eve"):
            await ann.open(target="eve")
        channel = await ann.open(target="bob")
        with pytest.raises(Denied, match="bad_event_type"):
            await channel.post(f"x {SECRET}", {})
        rows = [row.channel_id for row in await hub.channels()]
        told = str([await hub.log(channel_id) for channel_id in [*rows, "system:audit"]])
    assert "no entry with ***" in told
    assert "bad_event_type" in told
    assert SECRET not in told


def test_the_key_of_a_model_is_known_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "n0t-like-any-key-there-is")
    assert redact_text("n0t-like-any-key-there-is") == "n0t-like-any-key-there-is"
    OpenAIModel("gpt").check()
    assert redact_text("n0t-like-any-key-there-is") == "***"


@pytest.mark.parametrize(
    ("settings", "hidden", "shown"),
    [
        ({"Authorization": "Bearer abcdefgh1"}, "abcdefgh1", "Bearer"),
        ({"X-Api-Key": "onlyletters"}, "onlyletters", "Api"),
        ({"X-Team": "blue-7f3a9c"}, "blue-7f3a9c", "blue"),
        ({"NODE_ENV": "production"}, "", "production"),
        ({"PYTHONPATH": "/usr/lib/python3"}, "", "/usr/lib/python3"),
        ({"Accept": "application/json; v=2"}, "", "application/json; v=2"),
        ({"DATABASE_URL": "postgres://u:pa55word@db/x"}, "pa55word", "postgres"),
    ],
)
def test_what_of_settings_is_a_secret(settings: dict[str, str], hidden: str, shown: str) -> None:
    known = KnownSecrets()
    known.know_settings(settings)
    assert known(shown) == shown
    assert not hidden or hidden not in known(f"it said {hidden} twice")


def test_the_oldest_of_too_many_secrets_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.hub.known_secrets.MAX_KNOWN_SECRETS", 2)
    known = KnownSecrets()
    known.know("first secret", "second secret")
    known.know("first secret", "third secret")
    assert known("first secret, second secret, third secret") == "***, second secret, ***"
