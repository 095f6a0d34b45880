"""Which epoch runs next, in which order and from where; checkpoints of it."""
