"""The GPU helps: what workers leave to it, and what it makes of that."""
