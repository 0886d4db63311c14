"""What the log knows of sandboxes: folders, variables, and the state of a thread's machine."""
