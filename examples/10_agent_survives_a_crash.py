"""A process dies in the middle of a turn, right after a payment. The next one finishes the turn: paid once.

The payment is keyed: the second attempt makes it again with the same key, and the bank knows that key already.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from antiphon import Agent, Hub, Reply, Request, calls, says, tool


def clerk(bank: Path, *, dies: bool) -> Agent:
    async def model(request: Request) -> Reply:
        return says("Your 100 cents are back.") if request.exchange else calls("refund", {"order": "7", "cents": 100})

    @tool
    async def refund(order: str, cents: int, idempotency_key: str) -> str:
        """Pay money back."""
        payment = bank / idempotency_key
        if payment.exists():
            print("  the bank knows this key: nothing is paid again", flush=True)
        else:
            payment.write_text(f"{cents} cents for order {order}", encoding="utf-8")
            print(f"  the bank pays {cents} cents", flush=True)
        if dies:
            os._exit(1)  # the money has left, and no result is recorded
        return "done"

    return Agent("clerk", model=model, tools=[refund])


async def life(folder: Path, *, dies: bool) -> None:
    """Ask under a message id: asked again in a second life, nothing is said twice, and the turn goes on."""
    agent = clerk(folder / "bank", dies=dies)
    async with Hub.open(f"sqlite:///{folder / 'team.db'}") as hub:
        reply = await agent.invoke("Please refund order 7.", thread_id="ann", hub=hub, message_id="order-7")
        print("  clerk:", reply.text)
        for envelope in await hub.log(reply.channel_id, after=4):
            about = [str(envelope.event_data[key]) for key in ("epoch", "index", "name") if key in envelope.event_data]
            print(f"  {envelope.sequence:2} {envelope.event_type:22} {' '.join(about)}")


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(life(Path(sys.argv[1]), dies=sys.argv[2] == "dies"))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bank").mkdir()
        for end in ("dies", "lives"):
            print(f"A process that {end}:", flush=True)
            done = subprocess.run([sys.executable, __file__, name, end], check=False)
            print("  it ended with", done.returncode, flush=True)
        print("payments:", [payment.read_text(encoding="utf-8") for payment in (folder / "bank").iterdir()])


main()
