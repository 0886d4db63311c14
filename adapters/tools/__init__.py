"""Tools that come along, a file for each: a new file here is a new tool."""
