"""What acts on skills: the check of their content, and their changes."""
