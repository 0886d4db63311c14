"""What the page for people needs besides DeerFlow's and LangGraph's routes: itself, news, files, shares, what waits.

Imports `deerflow` and below.
"""
