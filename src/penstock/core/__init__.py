"""The pure core: events in, actions out. Tracks what each batch still needs and who works on it."""
