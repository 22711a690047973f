"""A server as a process of its own, for what only a process has: memory, signals and an end.

    python -m tests.server.child URL LIMITS

prints where it listens, and serves until it is told to stop. Whatever is logged, by anybody, goes to the file that
ANTIPHON_TEST_LOG names, if it names one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys

import msgspec

from antiphon import Agent, Hub, OpenAIModel
from antiphon import Limits as TurnLimits
from antiphon.server.limits import Limits
from antiphon.server.serving import serving
from tests.server.houses import echo


async def main(url: str, limits: Limits) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with Hub.open(url) as hub:
        await hub.register(Agent("support", echo))
        if "OPENAI_API_KEY" in os.environ:
            model = OpenAIModel("gpt", base_url="http://127.0.0.1:9/v1")  # where nobody answers
            await hub.register(Agent("remote", model, limits=TurnLimits(model_attempts=1)))
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
    asyncio.run(main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Limits)))
