"""What the names in a step directory mean, trainer by trainer."""
