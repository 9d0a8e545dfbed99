"""What runs inside a trainer. Each file works alone: the standard library, and nothing of ckptsync."""
