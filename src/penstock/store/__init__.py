"""Where bytes live: the shared arena that batches are assembled in, and the pure bookkeeping of its extents."""
