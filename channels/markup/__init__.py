"""Markdown for chat platforms: parsed once (`parse`), split at a platform's limits (`split`), rendered by one module each.

Every renderer takes Markdown source of any kind, also the beginning of a text that still grows, and never raises for
it. `parts` returns Markdown sources, each of which fits one message of the platform once rendered, so a part is given
to the renderers of the same module. All functions are pure; for texts over some 20 000 characters call them in a thread.
"""
