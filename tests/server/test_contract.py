"""The OpenAPI document is kept: whatever is sent, the answer is one that the document knows.

The ordinary run sends some hundred requests, the same every time; `make proof` sends thousands.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi import checks

from antiphon import Agent
from antiphon.server.routes import ROUTES
from antiphon.server.schemas import StrictParams
from tests.support.served_hub import echo, opened, served_hub

THOROUGH = os.environ.get("ANTIPHON_PROOF") == "1"
EXAMPLES = 60 if THOROUGH else 5
"""How many requests are made for every verb, well-formed ones and others each."""
KEPT = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.unsupported_method,
    checks.ignored_auth,
    checks.negative_data_rejection,
]
FITTING: dict[str, object] = {
    "target": ["bob"],
    "type": "conversation",
    "knobs": {},
    "model": "support",
    "messages": [{"role": "user", "content": "Good morning."}],
    "sender_id": "ann",
    "audience": None,
    "event_type": None,
    "data": None,
    "text": "Good morning.",
}
"""What makes sense in a body, beside being of the right type."""
USUAL = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate] if not THOROUGH else [Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@dataclass
class Site:
    """A server that runs beside the test, and what there is to ask for."""

    url: str = ""
    secret: str = ""
    places: dict[str, list[str]] = field(default_factory=dict)
    """What may stand in a path, and is there."""
    requests: int = 0

    @cached_property
    def schema(self) -> BaseSchema:
        """The document."""
        return schemathesis.openapi.from_url(f"{self.url}/openapi.json")


async def run_site(site: Site, ready: threading.Event, stop: asyncio.Event) -> None:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(served_hub(Agent("support", echo), Agent("other", echo)))
        await here.hub.register("bob")
        site.secret = await here.key("ann")
        ann = await here.client(site.secret)
        open_ones = [await opened(ann, "bob") for _ in range(2)]
        closed = [await opened(ann, "bob") for _ in range(2)]
        for channel_id in closed:
            assert (await ann.post(f"/channels/{channel_id}/close", json={})).status_code == 200
        wish = {"participant": "carl", "scopes": ["read"]}
        made = [(await ann.post("/keys", json=wish)).json()["key"]["key_id"] for _ in range(3)]
        site.url = here.served.url
        site.places = {
            "name": ["support", "other"],
            "channel_id": [*open_ones, *closed],
            "subscribe": closed,  # others would never end
            "key_id": made,
        }
        ready.set()
        await stop.wait()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A server in a loop of its own, because those who ask it here wait for its answers."""
    found, ready, stop = Site(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    def run() -> None:
        try:
            loop.run_until_complete(run_site(found, ready, stop))
        finally:
            ready.set()
            loop.close()

    beside = threading.Thread(target=run)
    beside.start()
    ready.wait()
    try:
        yield found
        assert found.requests >= (2000 if THOROUGH else 200)
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        beside.join()


def operation_of(site: Site, verb: str) -> APIOperation:
    """A verb as the document of the server describes it."""
    found = next(row for row in ROUTES if row.name == verb)
    operation: APIOperation = site.schema[found.path][found.method]
    return operation


def ask(site: Site, case: Case) -> None:
    site.requests += 1
    headers = {"Authorization": f"Bearer {site.secret}"}
    case.call_and_validate(checks=KEPT, headers=headers, timeout=20)


def led(site: Site, verb: str, case: Case, number: int) -> Case:
    """A request whose path mostly leads to something that is there. What never ends is not asked for."""
    for name in case.path_parameters or {}:
        known = site.places.get("subscribe" if verb == "subscribe" else name, [])
        if known and number % (len(known) + 1):
            case.path_parameters[name] = known[number % (len(known) + 1) - 1]
    if isinstance(case.body, dict) and number % 4:
        case.body = {name: FITTING.get(name, value) for name, value in case.body.items()}
        if verb == "post_message":
            case.body.setdefault("text", "Good morning.")
    return case


@pytest.mark.parametrize("verb", [verb.name for verb in ROUTES])
def test_what_fits_the_document_is_answered_by_the_document(site: Site, verb: str) -> None:
    operation = operation_of(site, verb)

    @USUAL
    @given(case=operation.as_strategy(GenerationMode.POSITIVE), number=st.integers(0, 1000))
    def check(case: Case, number: int) -> None:
        ask(site, led(site, verb, case, number))

    check()


@pytest.mark.parametrize(
    "verb", [verb.name for verb in ROUTES if verb.takes or "{" in verb.path or verb.query is not StrictParams]
)
def test_what_does_not_fit_is_refused_by_the_document(site: Site, verb: str) -> None:
    operation = operation_of(site, verb)

    @USUAL
    @given(case=operation.as_strategy(GenerationMode.NEGATIVE))
    def check(case: Case) -> None:
        ask(site, case)

    check()


def test_a_method_that_is_none_of_a_path_is_refused_with_those_that_are(site: Site) -> None:
    asked: dict[str, set[str]] = {verb.path: set() for verb in ROUTES}
    for verb in ROUTES:
        operation = operation_of(site, verb.name)
        schema = operation.schema
        config = schema.config.generation_for(operation=operation)
        modes = [GenerationMode.NEGATIVE]
        for case in schema.iter_coverage_cases(operation, generation_modes=modes, generation_config=config):
            if case.method != verb.method:
                ask(site, case)
                asked[verb.path].add(case.method)
    assert min(map(len, asked.values())) >= 5
