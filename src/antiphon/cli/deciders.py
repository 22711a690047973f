"""Where `antiphon approvals` decides: in a store that no hub uses, or at the server that uses it.

Rule 1: a listing only reads, beside any hub. A decision opens the store as a hub that runs no turns.
Rule 2: in a store a person decides by name; at a server, as the participant of the key.
"""

from __future__ import annotations

import asyncio
from typing import Protocol
from urllib.parse import quote, urlencode

import click
import msgspec

from antiphon.cli.keepers import AtServer, in_use
from antiphon.cli.options import file_outside, reading
from antiphon.core.errors import StoreRefused
from antiphon.runtime.approvals import Approval, PersonDecision, decide, stored_approvals
from antiphon.runtime.hub import Hub
from antiphon.store.ownership import checked_place

PERSON = "human"
OWN, OPERATOR = "own", "operator"
UNSEEN = "-"
"""A digest of nothing: the server says what has become of an approval that is not listed any more."""


class DecisionMade(msgspec.Struct, frozen=True):
    """A decision as it was recorded."""

    approval_id: str
    decision: str
    by: str


class ApprovalPage(msgspec.Struct, frozen=True):
    """What a server lists in one answer."""

    approvals: list[Approval]
    next: str | None = None


class Decider(Protocol):
    """Where approvals are listed and decided."""

    def listed(self, channel_id: str | None) -> list[Approval]:
        """What waits for a person, in one channel or in all."""
        ...

    def decide(self, approval_id: str, choice: PersonDecision) -> DecisionMade:
        """Record a decision."""
        ...


class StoreDecider:
    """Approvals in a store, which is opened for as long as it takes."""

    def __init__(self, url: str, tenant: str, name: str) -> None:
        self._url, self._tenant, self._name = url, tenant, name
        self._path = file_outside(url)

    def listed(self, channel_id: str | None) -> list[Approval]:
        async def read() -> list[Approval]:
            async with reading(self._url, self._tenant) as store:
                return await stored_approvals(store, channel_id)

        return asyncio.run(read())

    def decide(self, approval_id: str, choice: PersonDecision) -> DecisionMade:
        async def decided() -> DecisionMade:
            try:
                hub = await Hub.open(self._url, engine=None, tenant=self._tenant)
            except StoreRefused as error:
                raise in_use(self._path, error, what="decide this", scope="approve") from error
            try:
                directory = hub._desk.directory
                kind = directory.find(self._name).kind if directory.knows(self._name) else PERSON
                await hub.register(self._name, kind=kind)
                await decide(hub._desk, approval_id, choice, by=self._name, kind=kind)
            finally:
                await hub.close()
            return DecisionMade(approval_id, choice.decision, self._name)

        checked_place(self._path, read_only=True)  # a store that is not there is not made
        return asyncio.run(decided())


class ServerDecider:
    """Approvals at a running server, asked over HTTP."""

    def __init__(self, url: str, *, everything: bool) -> None:
        self._server, self._views = AtServer(url), [OPERATOR] if everything else [OWN]

    def listed(self, channel_id: str | None) -> list[Approval]:
        found = [approval for view in self._views for approval in self._in(view)]
        return [approval for approval in found if channel_id in (None, approval.channel_id)]

    def decide(self, approval_id: str, choice: PersonDecision) -> DecisionMade:
        digest = choice.digest or self._digest(approval_id)
        wish: dict[str, object] = {"decision": choice.decision, "digest": digest, "reason": choice.reason}
        if choice.text is not None:
            wish["text"] = choice.text
        return self._server.answered("POST", f"/approvals/{quote(approval_id, safe='')}", DecisionMade, wish=wish)

    def _digest(self, approval_id: str) -> str:
        """The digest of what waits under this id: in the channels of the key's participant, or in all if it may."""
        for view in (OWN, OPERATOR):
            try:
                found = self._in(view)
            except click.ClickException:
                if view == OWN:
                    raise
                return UNSEEN  # the key has no right to look at all channels
            for approval in found:
                if approval.approval_id == approval_id:
                    return approval.digest
        return UNSEEN

    def _in(self, view: str) -> list[Approval]:
        found: list[Approval] = []
        after: str | None = ""
        while after is not None:
            query = urlencode({"view": view, "after": after, "limit": 1000})
            page = self._server.answered("GET", f"/approvals?{query}", ApprovalPage)
            found += page.approvals
            after = page.next
        return found
