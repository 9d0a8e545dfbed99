"""Where the time of a push went, for people."""

from __future__ import annotations

import typer

from ckptsync.chunks.profile import STAGES, Profile
from ckptsync.cli.render import human_size, table

__all__ = ["profile_lines"]

_BYTES_PASSED = {"read": "raw", "hash": "raw", "encode": "raw", "put": "sent"}


def profile_lines(profile: Profile) -> None:
    """Print it on stdout."""
    total = sum(map(profile.stage_s, STAGES)) or 1.0
    table(("stage", "thread time", "share", "bytes", "per thread"), [_row(profile, stage, total) for stage in STAGES])
    codecs = ", ".join(f"{count} {name}" for name, count in sorted(profile.codecs.items())) or "none"
    typer.echo(
        f"{profile.wall_s:.2f} s, of it {profile.chunks_s:.2f} s for chunks, on {profile.threads} threads and "
        f"{profile.cpu_s:.2f} s of processor time"
    )
    typer.echo(f"chunks: {codecs}; {profile.skipped} ({human_size(profile.skipped_raw)}) were there already")
    typer.echo(
        f"requests sent again: {profile.retries} ({profile.retry_s:.2f} s); "
        f"waiting for the bandwidth limit: {profile.throttled_s:.2f} s"
    )
    typer.echo(profile.bottleneck)


def _row(profile: Profile, stage: str, total: float) -> tuple[str, ...]:
    seconds, passed = profile.stage_s(stage), getattr(profile, _BYTES_PASSED.get(stage, ""), 0)
    rate = f"{human_size(passed / seconds)}/s" if passed and seconds else "-"
    return stage, f"{seconds:.2f} s", f"{seconds / total:.0%}", human_size(passed) if passed else "-", rate
