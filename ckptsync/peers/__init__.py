"""Chunks from the other nodes of a run instead of the store: who has what, asked and given over HTTP."""
