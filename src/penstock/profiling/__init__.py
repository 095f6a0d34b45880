"""Active profiles: measure what training, local and remote workers can do, and leave no trace."""
