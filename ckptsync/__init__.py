"""ckptsync: checkpoint storage and sync for training jobs. See docs/design.md."""

__version__ = "0.1.0"
