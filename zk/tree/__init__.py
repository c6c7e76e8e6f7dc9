"""Paths, nodes and changes of the tree as values. Pure."""
