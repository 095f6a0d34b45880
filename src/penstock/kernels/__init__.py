"""Programs on a GPU: different images with different programs in a handful of launches (`docs/gpu.md`)."""
