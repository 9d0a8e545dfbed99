"""Object storage: the protocol, its adapters, retries, keys."""
