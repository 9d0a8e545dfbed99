"""The command of `ckptsync exec`: what is run, behind a guard, and the signals that come meanwhile."""
