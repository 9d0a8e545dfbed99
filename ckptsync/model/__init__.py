"""Values, and decisions as pure functions: nothing here reads a file or a clock."""
