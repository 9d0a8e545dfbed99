"""For tests: ours, and those of stores that others write."""
