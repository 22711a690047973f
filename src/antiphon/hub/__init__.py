"""The only place that writes: admission, delivery, and the hub's own channels."""
