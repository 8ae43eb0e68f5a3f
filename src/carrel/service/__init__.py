"""The use cases, in order: the only room that knows the order of steps."""
