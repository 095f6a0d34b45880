"""Revamper: partly prepared samples are stored and used several times."""
