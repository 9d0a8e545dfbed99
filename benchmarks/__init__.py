"""ckptsync measured side by side with what else a user would pick: `make bench`, `make bench-quick`.

README.md says how to run them, and which file does what.
"""
