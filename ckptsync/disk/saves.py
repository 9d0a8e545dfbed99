"""What this node remembers of the saves it verified: one small directory each, below the state directory.

A cache: deleting it is always safe, and costs at worst that steps are verified again. It spares re-reading after a
restart, keeps a part's bytes, which must be the same when a restarted daemon puts them, and the chunks that an
interrupted push has already brought in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from operator import attrgetter

from ckptsync.disk import durable
from ckptsync.model.manifest import ManifestError, Part
from ckptsync.model.parse import parse_part
from ckptsync.model.step import FileStat, Listing, Problem

__all__ = ["Broken", "Save", "Saves"]


@dataclass(frozen=True, slots=True)
class Save:
    """A verified save.

    Attributes:
        part: what was verified, with times in this node's clock.
        stats: path -> stat at verification; while it holds, the bytes are those of the part.
        commit: digest of the commit it was restored from; "" for a save of the trainer.
    """

    part: Part
    stats: Mapping[str, FileStat]
    commit: str = ""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.part.step:012d}-{self.part.id.digest[:24]}")

    def still_there(self, listing: Listing) -> bool:
        """Whether the directory still holds exactly this save's bytes (other files may have come)."""
        return all(
            path in listing.files and listing.files[path].unchanged_since(stat) for path, stat in self.stats.items()
        )


class Saves:
    """The saves below `<state_dir>/saves`. Unreadable entries are dropped silently: it is a cache."""

    def __init__(self, state_dir: str) -> None:
        self.root = os.path.join(state_dir, "saves")
        self._pulled = os.path.join(state_dir, "pulled")
        self._read_before: dict[str, tuple[tuple[int, int], Save]] = {}

    def changed_ns(self) -> int:
        """Moves when a save is added, replaced or dropped, by whichever process."""
        try:
            return os.stat(self.root).st_mtime_ns
        except OSError:
            return 0

    def pulled_ns(self) -> int:
        """When the last pull ended, 0 = never: shards from before it are of other saves."""
        try:
            return os.stat(self._pulled).st_mtime_ns
        except OSError:
            return 0

    def pulled(self, step: int) -> None:
        """Remember that a pull of `step` has just ended."""
        durable.publish(self._pulled, str(step).encode())

    def pulled_step(self) -> int | None:
        """The step that the last pull decided for; None = never pulled."""
        try:
            with open(self._pulled, encoding="ascii") as file:
                return int(file.read(32))
        except (OSError, ValueError):
            return None

    def load(self) -> list[Save]:
        """All saves, by the time they ended."""
        saves = [save for name in self._names() if (save := self._read(name)) is not None]
        return sorted(saves, key=lambda save: (save.part.saved_ns, save.name))

    def add(self, save: Save) -> None:
        """Remember a save."""
        document = {
            "part": save.part.to_bytes().decode("ascii"),
            "commit": save.commit,
            "stats": _pack(save.stats),
        }
        durable.publish(self._path(save, "save.json"), json.dumps(document).encode())
        os.utime(self.root)  # replacing a file two levels below does not move it

    def drop(self, save: Save) -> None:
        """Forget a save."""
        self._read_before.pop(save.name, None)
        durable.remove_tree(os.path.join(self.root, save.name), within=self.root)

    def mark(self, save: Save, name: str, value: str = "") -> None:
        """Remember one word about a save (`due`, `ready`, `commit`, ...)."""
        durable.publish(self._path(save, name), value.encode())

    def unmark(self, save: Save, name: str) -> None:
        """Forget a word."""
        durable.remove(self._path(save, name))

    def mark_of(self, save: Save, name: str) -> str | None:
        """The word remembered, None if there is none."""
        try:
            with open(self._path(save, name), encoding="utf-8") as file:
                return file.read()
        except OSError:
            return None

    def marked_at(self, save: Save, name: str) -> float:
        """When a word was remembered (seconds since the epoch); when the save was, if there is none."""
        paths = (self._path(save, name), self._path(save, "save.json"))
        return next((os.stat(path).st_mtime for path in paths if os.path.exists(path)), 0.0)

    def append(self, save: Save, name: str, word: str) -> None:
        """Add a line to a mark. Not synced to disk: a lost line costs one upload."""
        with open(self._path(save, name), "a", encoding="utf-8") as file:
            file.write(word + "\n")

    def _path(self, save: Save, name: str) -> str:
        return os.path.join(self.root, save.name, name)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.root))
        except FileNotFoundError:
            return []

    def _read(self, name: str) -> Save | None:
        """One save; parsed again only if its file is another one (it is replaced, never rewritten)."""
        try:
            with open(os.path.join(self.root, name, "save.json"), encoding="ascii") as file:
                found = os.fstat(file.fileno())
                version = (found.st_ino, found.st_mtime_ns)
                before = self._read_before.get(name)
                if before is not None and before[0] == version:
                    return before[1]
                document = json.load(file)
            part = parse_part(document["part"].encode("ascii"))
            save = Save(part, _unpack(document["stats"]), str(document["commit"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ManifestError):
            return None
        if save.name != name:
            return None
        self._read_before[name] = (version, save)
        return save


class Broken:
    """Step directories that failed verification, with the stats they had: they are read again only when they change."""

    def __init__(self, state_dir: str) -> None:
        self._path = os.path.join(state_dir, "broken.json")
        self._found: dict[str, tuple[dict[str, FileStat], tuple[Problem, ...]]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read again what another process (the daemon) has found."""
        self._found = {}
        try:
            with open(self._path, encoding="utf-8") as file:
                for name, entry in json.load(file).items():
                    self._found[name] = (_unpack(entry["stats"]), tuple(Problem(*p) for p in entry["problems"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._found = {}

    def problems_of(self, listing: Listing) -> tuple[Problem, ...]:
        """What is wrong with exactly these files; empty = never found broken, or changed since."""
        stats, problems = self._found.get(listing.name, ({}, ()))
        if stats.keys() == listing.files.keys() and all(
            stat.unchanged_since(stats[path]) for path, stat in listing.files.items()
        ):
            return problems
        return ()

    def add(self, listing: Listing, problems: tuple[Problem, ...]) -> None:
        """Remember a verdict, and forget those of directories that are gone."""
        parent = os.path.dirname(listing.path)
        self._found = {name: v for name, v in self._found.items() if os.path.isdir(os.path.join(parent, name))}
        self._found[listing.name] = (dict(listing.files), problems)
        document = {
            name: {"stats": _pack(stats), "problems": [astuple(p) for p in found]}
            for name, (stats, found) in self._found.items()
        }
        durable.publish(self._path, json.dumps(document, ensure_ascii=True).encode())


def _pack(stats: Mapping[str, FileStat]) -> dict[str, tuple[int, ...]]:
    fields = attrgetter(*FileStat.__slots__)  # astuple copies deeply, which tells with tens of thousands of files
    return {os.fsencode(path).hex(): fields(stat) for path, stat in stats.items()}


def _unpack(packed: Mapping[str, list[int]]) -> dict[str, FileStat]:
    return {os.fsdecode(bytes.fromhex(path)): FileStat(*stat) for path, stat in packed.items()}
