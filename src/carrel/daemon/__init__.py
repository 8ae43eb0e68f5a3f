"""The process that serves one data folder: its start, its sockets, its end."""
