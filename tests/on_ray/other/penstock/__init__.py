"""A penstock of another version, which a node may have."""

__version__ = "0.0.0+other"
