"""What a user holds: the hub, participants, and channels."""
