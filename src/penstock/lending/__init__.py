"""Cores that the loaders of a machine lend to one another: the manager, its books and its messages."""
