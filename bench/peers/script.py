"""What is said in a turn, the same for everybody: a question, a call of one tool, what it returns, the answer.

And who takes turns in a round robin, and to whom a turn is handed over.

Standard library only, like `stopwatch`.
"""

from __future__ import annotations

PROMPT = "Be brief."
TOOL, WHAT_IT_DOES = "look_up", "Look an order up."
ARGUMENTS = {"order": "7"}
ANSWER = "It has three books."
MESSAGES = 4
"""Of one turn."""
TEAM = ("a", "b", "c", "d")
"""In the order of their turns."""
EXPERT = "expert"
"""To whom the first hands over, and who answers."""


def question(number: int) -> str:
    return f"What is in order {number}?"


def found(order: str) -> str:
    """What the tool returns."""
    return f"{order}: 3 books"
