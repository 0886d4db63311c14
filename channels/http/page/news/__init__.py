"""What is new for a person's open pages, as one stream."""
