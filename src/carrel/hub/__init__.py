"""The hub: who is connected, who hears what, and the order of what is kept."""
