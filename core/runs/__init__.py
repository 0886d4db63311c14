"""The life of a run: requested (`intake`), owned and worked through, journalled, previewed, followed, paid for.

Imports the conversation as it is folded (`core.thread`), and what is below.
"""
