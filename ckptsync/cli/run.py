"""`ckptsync run`: the daemon in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptsync.cli.options import ConfigOption, OutputDirOption

__all__ = ["run"]


def run(
    config: ConfigOption = None,
    output_dir: OutputDirOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="One full pass: settle, verify, promote, upload, then exit.")
    ] = False,
) -> None:
    """Watch, verify, promote and upload until stopped: the daemon.

    SIGTERM stops it after what is due is uploaded ([daemon] stop_timeout), SIGHUP reads the configuration again.
    An output_dir that does not exist yet is waited for.
    With --once it waits until no step is inside `settle`, never for other nodes or missing files, and exits 0
    whatever it found, if the pass itself worked.
    """
    import os
    import sys
    from functools import partial

    from ckptsync.config import load
    from ckptsync.daemon.service import run_forever, run_once, set_up_log

    set_up_log()
    read = partial(load, config, output_dir=output_dir)
    if once:
        run_once(read())
    elif not run_forever(read):
        sys.stderr.flush()
        os._exit(0)
