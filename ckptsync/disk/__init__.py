"""This node's file system: scan, verify, promote, stage; durable.py is the only module that renames and links."""
