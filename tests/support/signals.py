"""Signals of child processes, whatever the parent does with them."""

import signal


def heed_ctrl_c() -> None:
    """For `preexec_fn`: SIGINT ends the child also where it is ignored here, as in a background job of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
