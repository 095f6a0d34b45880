"""The pure core: events in, actions out. What is owed of each batch, who works on it, and what happens next."""
