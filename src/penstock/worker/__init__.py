"""A worker process: takes tasks from its agent, prepares samples, writes them into their batch."""
