"""What the public contract promises, in plain words."""
