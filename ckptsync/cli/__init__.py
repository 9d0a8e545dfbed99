"""Each command has a file, which reads arguments, calls and prints, and decides nothing."""
