"""Nouns and pure decisions: no I/O, no clock."""
