"""Engines that build and pull images: found, tried, and run where they see nothing of the host."""
