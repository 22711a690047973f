"""What the README, the documentation and the examples say is run and compared."""
