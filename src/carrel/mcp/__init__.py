"""The MCP server: what an agent can ask of Carrel, as tools. Imported by `carrel mcp` alone."""
