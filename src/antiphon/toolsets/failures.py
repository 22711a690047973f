"""What goes wrong with a server of tools, as whoever called the tool is told.

Rule 1: these are raised inside a tool, so that the model reads the sentence; a turn never ends because of them.
Rule 2: a call that may have taken effect says so.
"""

from __future__ import annotations

from antiphon.core.errors import AntiphonError

MAYBE = "the call may have taken effect all the same"


class ToolFailed(AntiphonError):
    """A server's tool did not do what it was called for, or nobody knows whether it did. The message says which."""


class Unsent(ToolFailed):
    """The connection was over before the request had left. It can be made again on another one."""
