"""Protocols that are not ours: LangGraph's two, AG-UI, and the Model Context Protocol. They do not know each other.

Imports `streams`, `accounts` and below; MCP's tools also what `deerflow` knows of files.
"""
