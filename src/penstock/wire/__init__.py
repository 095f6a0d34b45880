"""What processes share: frames on sockets, sample layouts, and the memory that batches are assembled in."""
