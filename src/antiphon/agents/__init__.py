"""Agents: how they are declared, what a model is asked and answers, tools, and the one loop of a turn."""
