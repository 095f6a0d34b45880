"""The engine: a pure core that decides, and the agent, workers and training-process client that obey it."""
