"""Where the values of a start come from, and those of the training that wrote a step: each with its source."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ckptsync.app import Node
from ckptsync.errors import StoreError
from ckptsync.model.launch import LaunchRecord
from ckptsync.model.ran import RAN, Ran, as_run, read_ran
from ckptsync.model.secrets import HIDDEN
from ckptsync.resume.contents.step_json import object_in
from ckptsync.resume.context import Resumed
from ckptsync.resume.settings import Known, Settings
from ckptsync.resume.sources.arguments import COMMAND_LINE, parse_arguments
from ckptsync.resume.sources.command import read_command, runs_script
from ckptsync.resume.sources.hydra import elsewhere, find_config
from ckptsync.resume.sources.interpreter import Interpreter
from ckptsync.resume.sources.train_log import settings_of
from ckptsync.sync.launches import Launches

__all__ = ["settings_now", "settings_then"]

_TEXT_CHARS_MAX = 1000
_CLOCKS_NS = 5 * 10**9
"""By how much this node's clock and the store's may differ without that being known."""
_log = logging.getLogger("ckptsync")


def settings_now(words: Sequence[str], python: Interpreter | None, *, cwd: str, env: Mapping[str, str]) -> Settings:
    """What a start will use.

    Args:
        words: the whole command, or only the trainer's arguments.
        python: the trainer's interpreter; without it only what the words themselves say is known.
        cwd: where it is started.
        env: the environment of the start.
    """
    given = parse_arguments(words)
    if python is None:
        return given
    composed = replace(python, env={**env, **dict(read_command(words).env)}).composed(words, cwd)
    if composed is None:
        return given
    source = f"Hydra, asked with {python.path}"
    values = {
        name: Known(value, COMMAND_LINE if name in given.explicit else source)
        for name, value in composed.values.items()
    }
    missing = frozenset(composed.missing)
    return Settings({**given.values, **values}, given.explicit, complete=not missing, unresolved=missing)


def settings_then(
    node: Node, resumed: Resumed | None, *, train_log: str | None, launches: Launches | None, cwd: str = ""
) -> tuple[Settings, LaunchRecord | None]:
    """What the training used that wrote a step, and the launch that wrote it.

    Each value is from the best source that has it: the trainer's own process as it was seen below the launch, else the
    record of that, the config.yaml that Hydra wrote before the save, the train log, the step itself. The record that is
    returned has what was really run, too.

    Args:
        node: this node.
        resumed: the step; None = there is none, and nothing is known.
        train_log: a log of that training; None = none is at hand.
        launches: None = the store is not asked.
        cwd: where the training may have been started; "" = here.

    Raises:
        ConfigError: the train log cannot be read.
    """
    if resumed is None:
        return Settings(), None
    told = _Told.of(node, resumed, launches)
    sources = [_recorded(told.record, told.ran)] if told.record is not None else []
    found = find_config(
        node.config.run.output_dir,
        _saved_here_ns(resumed),
        cwd=(told.record.cwd if told.record is not None else "") or cwd or os.getcwd(),
        trainer_dir=node.config.run.trainer_dir,
    )
    if found is not None and told.fits(found.written_ns + _offset_ns(resumed)):
        sources.append(found.settings)
    if train_log is not None:
        sources.append(_logged(node, resumed, train_log))
    sources.append(Settings({name: Known(value, resumed.path) for name, value in _of_step(node, resumed)}))
    return _merged(sources), told.record


@dataclass(frozen=True, slots=True)
class _Told:
    """What the store says of the training that wrote a step."""

    record: LaunchRecord | None
    begun: Callable[[int], bool]
    ran: Ran | None = None

    @classmethod
    def of(cls, node: Node, resumed: Resumed, launches: Launches | None) -> _Told:
        """Ask it, by one list. A store that fails knows nothing: it is only logged."""
        if launches is None or not resumed.saved_ns:
            return cls(None, lambda _: False)
        saved_ns = resumed.saved_ns
        try:
            objects = launches.objects()
            record = launches.wrote(saved_ns, node.config.node.name, objects=objects)
        except StoreError as error:
            _log.warning("nobody knows which launch wrote step %d: %s", resumed.step, error)
            return cls(None, lambda _: False)
        ran = _ran(launches, record) if record is not None else None
        record = as_run(record, ran) if record is not None else None
        return cls(record, lambda since_ns: launches.begun(since_ns, saved_ns, objects=objects), ran)

    def fits(self, written_ns: int) -> bool:
        """Whether a configuration written then (store time) is of this training: it did not start anew since."""
        if self.record is not None:
            return written_ns + _CLOCKS_NS >= self.record.started_ns
        try:
            return not self.begun(written_ns)
        except StoreError as error:
            _log.warning("Hydra's configuration is left out: %s", error)
            return False


def _ran(launches: Launches, record: LaunchRecord) -> Ran | None:
    """What was seen below the launch. Where the store does not tell, that is said, and the record stands alone."""
    try:
        return read_ran(launches.noted(record, RAN))
    except StoreError as error:
        _log.warning("what the launch really ran is left out: %s", error)
        return Ran(why="what its command really ran cannot be read")


def _merged(sources: Sequence[Settings]) -> Settings:
    """Of each name the value of the first source that has it; explicit names by the first source that knows any."""
    values: dict[str, Known] = {}
    for settings in reversed(sources):
        values.update(settings.values)
    explicit = next((settings.explicit for settings in sources if settings.explicit), frozenset())
    complete = any(settings.complete for settings in sources)
    unresolved = frozenset[str]() if complete else frozenset().union(*(each.unresolved for each in sources))
    why = next((settings.why for settings in sources if settings.why), "")
    return Settings(values, explicit, complete, unresolved, why)


def _logged(node: Node, resumed: Resumed, train_log: str) -> Settings:
    """What a log says of the training of a step, unless it is the log of another run."""
    found, run = settings_of(train_log, resumed.step), node.config.run
    other = elsewhere(found, run.output_dir, run.trainer_dir)
    if other:
        _log.warning("%s is of another run, which saves to %s: it is left out", train_log, other)
        return Settings()
    return found


def _recorded(record: LaunchRecord, ran: Ran | None) -> Settings:
    """What a record says, with what was seen. A hidden value is not known."""
    what = "the launch record" if ran is None or ran.why else "the trainer's process"
    source = f"{what} of attempt {record.attempt} on {record.node}"
    values = {name: Known(value, source) for name, value in record.settings.items() if not _hides(value)}
    why = ran.why if ran is not None else ""
    if ran is None and runs_script(record.argv):
        why = "its command was a script, and the trainer was not seen below it"
    return Settings(values, record.explicit, complete=record.complete, why=why)


def _hides(value: object) -> bool:
    return HIDDEN in json.dumps(value)


def _saved_here_ns(resumed: Resumed) -> int:
    """When the save ended by the clock of this node, as its files have it."""
    return resumed.saved_ns - _offset_ns(resumed) if resumed.saved_ns else resumed.listing.newest_ns


def _offset_ns(resumed: Resumed) -> int:
    """Store time minus this node's time."""
    return resumed.part.offset_ns if resumed.part is not None else 0


def _of_step(node: Node, resumed: Resumed) -> Iterator[tuple[str, object]]:
    """What the step's own names and small files say.

    `step.<role>.world_size` from the names of its shards, `step.<role>.fsdp_version` from verl's fsdp_config.json,
    `step.state.<name>` from a trainer_state.json.
    """
    yield from _worlds(node, resumed)
    for path in resumed.listing.files:
        role, _, name = path.rpartition("/")
        if name == "fsdp_config.json":
            version = (object_in(resumed, path) or {}).get("FSDP_version")
            if type(version) is int:
                yield _name(role, "fsdp_version"), version
        elif path == "trainer_state.json":
            state = (object_in(resumed, path) or {}).items()
            yield from ((f"step.state.{key}", value) for key, value in state if _is_plain(value))


def _is_plain(value: object) -> bool:
    """No list, no dict, and no state that was packed into text."""
    return isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _TEXT_CHARS_MAX)


def _worlds(node: Node, resumed: Resumed) -> Iterator[tuple[str, object]]:
    """Of the roles whose shards agree."""
    worlds: dict[str, set[int]] = {}
    shards = map(node.layout.shard, resumed.listing.files) if node.layout is not None else ()
    for shard in shards:
        if shard is not None and shard.world:
            worlds.setdefault(shard.role, set()).add(shard.world)
    yield from ((_name(role, "world_size"), max(found)) for role, found in sorted(worlds.items()) if len(found) == 1)


def _name(role: str, what: str) -> str:
    return f"step.{role.replace('/', '.')}.{what}" if role else f"step.{what}"
