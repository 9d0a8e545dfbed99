"""`ckptsync demo`: a checkpoint's life in a minute, with real files and real processes."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Four nodes that resume together, instead of one.")
    ] = False,
    driver: Annotated[
        str, typer.Option("--driver", metavar="obstore|fsspec", help="The library that speaks to the store.")
    ] = "obstore",
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="DIR", help="Work in DIR, new or empty, and leave it.", show_default=False),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="Another store than a temporary one.", show_default=False),
    ] = None,
) -> None:
    """Show the whole cycle: save, verify, promote, push, lose the disk, pull, compare every byte.

    With --cluster: four nodes, one of them dies in the middle of a save, ranks move, and all resume from the same step.
    Everything happens in a temporary directory. Exit 0 only if all went as promised.
    """
    import signal

    from ckptsync.cli.demo_stage import Stage, play
    from ckptsync.errors import UsageError

    if driver not in ("obstore", "fsspec"):
        raise UsageError("unknown driver", where=driver, remedy="obstore or fsspec")
    # SIGTERM ends it like Ctrl-C does: children first, then the directory
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Stage(driver=driver, keep=keep, store=store) as stage:
            if cluster:
                from ckptsync.cli.demo_cluster import play_cluster

                play_cluster(stage)
            else:
                play(stage)
    finally:
        signal.signal(signal.SIGTERM, previous)
