"""Summaries of long conversations: where they are cut, what is written, recorded and saved."""
