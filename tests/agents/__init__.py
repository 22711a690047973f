"""Tools, calls of them, and the model that answers by a script."""
