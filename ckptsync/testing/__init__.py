"""What our own tests and other people's stores use."""
