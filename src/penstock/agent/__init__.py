"""The agent: one process per loader that runs the core, and starts, watches and replaces its workers."""
