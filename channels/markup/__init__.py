"""Markdown for chat platforms: parsed (`parse`), split at a platform's limits (`split`), rendered by a module for each.

Every renderer takes Markdown of any kind, also the beginning of a text that still grows, and never raises for it.
`parts` returns Markdown texts, each of which fits one message of the platform once rendered: a part is given to the
renderers of the same module. All functions are pure. For texts over 20 000 characters, call them in a thread.
"""
