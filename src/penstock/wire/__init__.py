"""What processes share: frames on sockets, the layout of samples, and the memory that batches are assembled in."""
