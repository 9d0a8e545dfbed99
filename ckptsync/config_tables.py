"""The tables of the configuration: their keys, what these may be, and their defaults (docs/configuration.md).

Durations are seconds (float), sizes bytes (int), rates bytes per second (int), paths absolute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic import model_validator as check_table

from ckptsync.config_values import absolute_path, address, host_url, name, rank_scope, selection, store_url
from ckptsync.model.step import Level
from ckptsync.units import FreeSpace, parse_duration, parse_free_space, parse_rate, parse_size

__all__ = [
    "CommitTable",
    "ConfirmTable",
    "DaemonTable",
    "LocalRetentionTable",
    "NodeTable",
    "PeerTable",
    "PreflightTable",
    "PromoteTable",
    "PullTable",
    "RemoteRetentionTable",
    "RetentionTable",
    "RunTable",
    "ScrubTable",
    "Table",
    "UploadTable",
    "VerifyTable",
    "WatchTable",
]


def _at_least(seconds: float, written: str) -> Callable[[float], float]:
    def check(value: float) -> float:
        if value < seconds:
            msg = f"must be at least {written}"
            raise ValueError(msg)
        return value

    return check


def _items(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Duration = Annotated[float, BeforeValidator(parse_duration)]
Period = Annotated[Duration, AfterValidator(_at_least(0.001, "1ms"))]
Size = Annotated[int, BeforeValidator(parse_size)]
Rate = Annotated[int, BeforeValidator(parse_rate)]
Free = Annotated[FreeSpace, BeforeValidator(parse_free_space)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, AfterValidator(name)]
Text = Annotated[str, Field(min_length=1)]
Address = Annotated[str, AfterValidator(address)]
AbsolutePath = Annotated[str, AfterValidator(absolute_path)]


class Table(BaseModel):
    """Frozen; a key that it does not have is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RunTable(Table):
    """[run]: which run, and where it lives.

    Attributes:
        name: the run's name in the store; the base name of output_dir by default.
        output_dir: the directory that holds the step directories.
        layout: a layout's name, or "auto".
        trainer_dir: output_dir as the trainer sees it (inside its container).
        state_dir: what this node remembers of the run.
    """

    name: Name
    output_dir: AbsolutePath
    layout: Text = "auto"
    trainer_dir: AbsolutePath
    state_dir: AbsolutePath


class NodeTable(Table):
    """[node]: this machine's name, and how many nodes the run has (None = not said)."""

    name: Name
    count: Count | None = None


class WatchTable(Table):
    """[watch]: how long a step must be unchanged, and how often the directory is scanned; seconds."""

    settle: Annotated[Duration, AfterValidator(_at_least(2, "2s"))] = 10.0
    scan_interval: Annotated[Duration, AfterValidator(_at_least(0.1, "100ms"))] = 5.0


class VerifyTable(Table):
    """[verify]: the level, and the limits of the child process of level deep (seconds, bytes)."""

    level: Annotated[Level, Field(strict=False)] = Level.FULL
    deep_timeout: Period = 1800.0
    deep_memory: Annotated[Size, Field(ge=256 * 1024**2)] = 16 * 1024**3


class PromoteTable(Table):
    """[promote]: where `latest` goes: "auto" (where its layout finds it harmless), "off", or an absolute path."""

    link: Literal["auto", "off"] | AbsolutePath = "auto"


class CommitTable(Table):
    """[commit]: how far the files of one save may lie apart, seconds, where the trainer has no barrier between them."""

    window: Period = 3600.0


class UploadTable(Table):
    """[upload]: which steps go to which store, and at what cost.

    Attributes:
        store: URL of the store without a trailing slash.
        every_steps, every: upload each so many steps, or each so many seconds; exactly one is set.
        idle: upload the newest step when no new save came for this long; None = three times the spacing of saves.
        since: ignore steps below this number.
        bandwidth, bandwidth_total: bytes per second that this node, and all nodes together, may send; None =
            unlimited.
        workers: transfers at the same time; auto = as cores and link need.
        yield_to_trainer: the daemon takes only what the trainer leaves of the machine.
        compression: auto = byte planes where they pay.
        endpoint, region, profile, addressing, ca_file: of an S3-compatible store.
        driver: the library that speaks to the store.
    """

    store: Annotated[str, AfterValidator(store_url)]
    every_steps: Count | None = None
    every: Period | None = None
    idle: Period | None = None
    since: Annotated[int, Field(ge=0)] | None = None
    bandwidth: Rate | None = None
    bandwidth_total: Rate | None = None
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=64)] = "auto"
    yield_to_trainer: bool = True
    compression: Literal["auto", "zstd", "none"] = "auto"
    endpoint: Annotated[str, AfterValidator(host_url)] | None = None
    region: Text | None = None
    profile: Text | None = None
    addressing: Literal["auto", "path", "virtual"] = "auto"
    driver: Literal["obstore", "fsspec"] = "obstore"
    ca_file: AbsolutePath | None = None

    @check_table(mode="before")
    @classmethod
    def _one_rhythm(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        if {"every_steps", "every"} <= table.keys():
            msg = "every_steps and every exclude each other: keep one"
            raise ValueError(msg)
        return table if "every" in table else {"every_steps": 1, **table}


class PullTable(Table):
    """[pull]: what a resume needs.

    Attributes:
        drop: files that are not restored; paths inside the step, `*` and `?` allowed.
        nodes: how many nodes must agree; None = as the environment or the command line says.
        timeout: seconds to wait for all of them.
        scope: "all" files of the step, this node's "own", or ranks such as "8-15".
        world_size: of the training that resumes; None = not said, and not compared.
        select: which step is taken.
    """

    drop: Annotated[tuple[Text, ...], BeforeValidator(_items)] = ("rollout/engine_state.json",)
    nodes: Count | None = None
    timeout: Period = 600.0
    scope: Annotated[str, AfterValidator(rank_scope)] = "all"
    world_size: Count | None = None
    select: Annotated[str, AfterValidator(selection)] = "newest"


class KeepBest(Table):
    """keep_best: the `count` steps with the greatest (or least) value of a metric."""

    metric: Text
    mode: Literal["max", "min"] = "max"
    count: Count = 1


class _Policies(Table):
    keep_last: Count | None = None
    keep_every: Count | None = None
    keep_within: Period | None = None
    keep_best: KeepBest | None = None


class LocalRetentionTable(_Policies):
    """[retention.local]: policies (None = off), and whether anything is deleted here.

    Attributes:
        delete: False = only report what could go.
        min_free: what must stay free of the disk, also after the next save.
        max_size: the most bytes that this run's steps may take here.
    """

    delete: bool = False
    min_free: Free | None = None
    max_size: Annotated[Size, Field(ge=1)] | None = None


class RemoteRetentionTable(_Policies):
    """[retention.remote]: policies (None = off), and the seconds between condemning and deleting."""

    grace: Duration = 86400.0


class RetentionTable(Table):
    """[retention.local] and [retention.remote]."""

    local: LocalRetentionTable = LocalRetentionTable()
    remote: RemoteRetentionTable = RemoteRetentionTable()


class PeerTable(Table):
    """[peer]: chunks from other nodes and for them.

    Attributes:
        listen: `host:port` where this node gives chunks; None = it gives none.
        secret_file: holds the secret that all nodes share.
        daemons: `host:port` of other nodes' daemons, which are asked for what lies on their disks.
    """

    listen: Address | None = None
    secret_file: AbsolutePath | None = None
    daemons: Annotated[tuple[Address, ...], BeforeValidator(_items)] = ()

    @check_table(mode="after")
    def _guarded(self) -> PeerTable:
        if (self.listen is not None or self.daemons) and self.secret_file is None:
            msg = "listen needs secret_file: whoever can connect would read the checkpoints"
            raise ValueError(
                msg if self.listen is not None else "daemons needs secret_file: they answer to no one else"
            )
        return self


class DaemonTable(Table):
    """[daemon]: how it ends, and where it listens.

    Attributes:
        stop_timeout: seconds that SIGTERM leaves to what is in flight.
        socket: where a trainer's callback tells of a step: "auto", "off", or an absolute path.
    """

    stop_timeout: Duration = 60.0
    socket: Literal["auto", "off"] | AbsolutePath = "auto"


class ConfirmTable(Table):
    """[confirm]: the trainer's log, in which the daemon looks whether a resume went on; None = it does not look."""

    train_log: AbsolutePath | None = None


class ScrubTable(Table):
    """[scrub]: bytes of the store to read and check per day; 0 = off."""

    bytes_per_day: Size = 0


class PreflightTable(Table):
    """[preflight]: TCP ports that must be free before the trainer starts, and the names of checks to leave out."""

    ports: Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...], BeforeValidator(_items)] = ()
    skip: Annotated[tuple[Text, ...], BeforeValidator(_items)] = ()
