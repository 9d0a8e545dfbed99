"""Between disk and store: push, commit, pull."""
