"""Revamper: store partly prepared samples and use them several times."""
