"""The contract between datasets and workers: what a dataset offers, and how samples are seeded."""
