"""Byte sources behind one read interface: files, tar shards, http servers, object stores."""
