"""The views of a terminal: the chat, the viewers of logs, and how text is written to one.

Imports the client, never the server: `channels.cli` puts the two together.
"""
