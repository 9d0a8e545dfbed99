"""Object storage: the protocol (base.py), its adapters, retries, and the names of objects.

objects.py is the data path (obstore), files.py a directory, fsspec.py everything else; faults.py is their common
table of what a failure means, options.py what they need to know besides the URL. retrying.py wraps any of them.
`ckptsync.testing.store.StoreContract` holds every adapter to the protocol.
"""
