"""A node-wide cache of bytes: tiers in memory and on disk, and the service through which other processes read them."""
