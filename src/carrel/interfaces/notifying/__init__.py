"""Ways to a person who is not looking: the desktop, and a webhook."""
