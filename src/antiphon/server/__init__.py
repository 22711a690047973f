"""The hub over HTTP: agents to ask, channels to read and speak in, approvals to give."""
