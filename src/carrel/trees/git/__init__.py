"""Everything that knows git: running it safely, reading its files, mirrors and checkouts."""
