"""What goes by itself, and what is kept of it for a while."""
