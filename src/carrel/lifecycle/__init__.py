"""The states of a space and the moves between them; pure."""
