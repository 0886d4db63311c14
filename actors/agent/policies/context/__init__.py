"""Policies of what the model sees: reminders and memories, pictures, shorter results, summaries, tools by search."""
