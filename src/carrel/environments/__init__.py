"""Which toolchain a project asks for: read from its files, never run."""
