"""The agent: one process per loader that drives the core, and starts, watches and replaces its workers."""
