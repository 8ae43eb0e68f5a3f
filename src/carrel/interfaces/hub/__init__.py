"""The hub over Unix sockets: one JSON object a line."""
