"""Where turns run. An engine decides when and where; what counts is only what the log says."""
