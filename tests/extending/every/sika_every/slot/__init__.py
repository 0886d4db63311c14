"""A chat platform of two modules: a person pushes the file `in` through a slot, and finds the file `out`."""
