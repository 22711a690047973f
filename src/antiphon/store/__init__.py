"""Where logs are kept: the protocols every store honours, and the stores that ship."""
