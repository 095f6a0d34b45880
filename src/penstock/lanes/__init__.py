"""Where samples are prepared: what a worker runs, how it writes results, and the frames it exchanges with the agent."""
