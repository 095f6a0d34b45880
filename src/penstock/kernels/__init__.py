"""Programs on a GPU: a task of different images with different programs in a handful of launches. `docs/gpu.md` says how."""
