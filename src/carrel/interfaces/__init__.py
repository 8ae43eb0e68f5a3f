"""How programs reach the service: each interface decodes, calls the service, and encodes."""
