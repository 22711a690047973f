"""What tests in several folders share, one module for each concept."""
