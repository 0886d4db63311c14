"""Actor of skills: checks their content, and changes them."""
