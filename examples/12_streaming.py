"""What an agent does while it does it: tools, pieces of text as the model speaks, the answer, the end."""

import asyncio

from antiphon import (
    Agent,
    AIMessageEvent,
    FinalStateEvent,
    Hub,
    ScriptedModel,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
    calls,
    says,
    tool,
)


@tool
async def weather(city: str) -> dict[str, object]:
    """The weather in a city."""
    return {"city": city, "sky": "rain", "degrees": 9}


async def main() -> None:
    model = ScriptedModel([calls("weather", {"city": "Bergen"}), says("It rains, as ever. Take a coat.")])
    agent = Agent("guide", model=model, tools=[weather])
    async with Hub.open("memory:") as hub:
        async for event in agent.stream_invoke("What shall I wear in Bergen?", hub=hub, tokens=True):
            match event:
                case ToolUsageEvent(tool=name, args=args):
                    print("asks for", name, args)
                case ToolResponseEvent(tool=name, text=text):
                    print("is told", text)
                case TokenEvent(text=text):
                    print("  …", text)
                case AIMessageEvent(text=text):
                    print("says:", text)
                case FinalStateEvent(stopped=stopped, usage=usage):
                    print("stopped:", stopped, "- tokens:", usage.input_tokens, "in,", usage.output_tokens, "out")


asyncio.run(main())
