"""What a step directory means to its trainer."""
