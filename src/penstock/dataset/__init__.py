"""The contract between datasets and whoever prepares their samples: what a dataset offers, and how samples are seeded."""
