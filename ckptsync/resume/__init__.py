"""Before the trainer starts, and just after: what the run was, what it will be, and whether one continues the other."""
