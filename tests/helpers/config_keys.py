"""The keys that a configuration can have."""

from __future__ import annotations


def tables(model, path=""):
    """(table, key) of every setting below a model; tables are dotted paths."""
    for key, field in model.model_fields.items():
        dotted = f"{path}.{key}".lstrip(".")
        if hasattr(field.annotation, "model_fields"):
            yield from tables(field.annotation, dotted)
        else:
            yield path, key
