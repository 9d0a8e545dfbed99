"""The checks of a preflight: one file each, one function `check(context) -> Outcome`."""
