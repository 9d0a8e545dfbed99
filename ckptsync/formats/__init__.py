"""Inside one file, never executing it."""
