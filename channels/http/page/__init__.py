"""The page for people, and its routes besides DeerFlow's and LangGraph's: news, files, shares, what waits.

Imports `deerflow` and below.
"""
