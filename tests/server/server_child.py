"""A server as a process of its own, for what only a process has: memory, signals and an end.

    python -m tests.server.server_child URL LIMITS

prints where it listens, and serves until it is told to stop. Whatever is logged, by anybody, goes to the file that
ANTIPHON_TEST_LOG names, if it names one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import resource
import signal
import sys
from urllib.parse import quote

import msgspec

from antiphon import Agent, Hub, OpenAIModel, Reply, Request, calls, says, tool
from antiphon import Limits as TurnLimits
from antiphon.server.limits import ServerLimits
from antiphon.server.serving import serving
from tests.support.served_hub import echo


def encoded(name: str) -> list[str]:
    """A secret of the environment in every form that it takes on its way into the text of an error."""
    secret = os.environ[name]
    shifted = [base64.b64encode(f"{'u' * before}{secret}:x".encode()).decode() for before in range(3)]
    return [secret, *shifted, base64.urlsafe_b64encode(secret.encode()).decode(), quote(secret), json.dumps(secret)]


@tool
def repeat(name: str, form: int) -> str:
    """Fails, and repeats a secret."""
    raise RuntimeError(f"cannot connect with {encoded(name)[form]}")


async def leaky(request: Request) -> Reply:
    """Fails as it is told to, by itself or with its tool: `tool OPENAI_API_KEY 3`."""
    how, name, form = request.messages[-1].text.split() if not request.exchange else ("", "", "")
    if how == "tool":
        return calls("repeat", {"name": name, "form": int(form)})
    if how == "model":
        raise RuntimeError(f"cannot connect with {encoded(name)[int(form)]}")
    return says("Sorry.")


async def main(url: str, limits: ServerLimits) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with Hub.open(url) as hub:
        await hub.register(Agent("support", echo))
        if "OPENAI_API_KEY" in os.environ:
            model = OpenAIModel("gpt", base_url="http://127.0.0.1:9/v1")  # where nobody answers
            await hub.register(Agent("remote", model, limits=TurnLimits(model_attempts=1)))
            await hub.register(Agent("leaky", leaky, tools=[repeat]))
        await hub.register("bob")
        async with serving(hub, port=0, limits=limits, open=True) as served:
            print(served.port, flush=True)
            await stopping.wait()


if __name__ == "__main__":
    if "ANTIPHON_TEST_FILES" in os.environ:
        files = int(os.environ["ANTIPHON_TEST_FILES"])
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if "ANTIPHON_TEST_LOG" in os.environ:
        logging.basicConfig(level=logging.DEBUG, filename=os.environ["ANTIPHON_TEST_LOG"])
    asyncio.run(main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=ServerLimits)))
