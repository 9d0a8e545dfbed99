"""Bytes to stored chunks and back: split, codec, pool."""
