"""Facts about people: recorded, searched, chosen for a prompt, read from conversations."""
