"""`python -I -m carrel.mcp`: what the daemon starts."""

from carrel.mcp.sessions import main

main()
