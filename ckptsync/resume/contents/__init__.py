"""What steps, models and datasets hold, read without loading them."""
