"""Where bytes come from: files, tar shards, http servers, object stores. One interface for reading them."""
