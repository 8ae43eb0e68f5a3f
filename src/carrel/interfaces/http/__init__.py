"""The HTTP interface: decode a request, call the service, encode the answer."""
