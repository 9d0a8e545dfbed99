"""Damage to stored chunks, what the nodes' disks can heal of it, and what then must hold (collection_world.py)."""

from __future__ import annotations

import random
from pathlib import Path

from toy_saves import SHARES

from ckptsync.errors import StoreError
from ckptsync.store import keys
from ckptsync.sync.restore import LocalContent
from ckptsync.sync.scrub import ScrubOptions, scrub

SCRUBBERS = "ABE"  # E has nothing on its disk


class Damage:
    """What was done to the chunks of a store behind everybody's back, and what was seen of its commits.

    Args:
        store: simulated.
        shares: what `toy_saves.make_save` made, one for each of SHARES.

    Attributes:
        ever: keys of the chunks that were damaged at some time.
        disks: node -> what a scrub of that node can heal from; it changes while the scrub runs.
        taken_back: digests of commits whose marks were deleted at some time.
    """

    def __init__(self, store, shares):
        self._store, self._shares = store, shares
        self._left = {}  # key -> the object that damage has left, None = none
        self._altered = set()
        self._known = {}  # digest of a commit -> the chunks that it needs, and its step and files
        self.ever, self.taken_back = set(), set()
        self.disks = {node: LocalContent({}, {}) for node in SCRUBBERS}
        self._fill()

    # -- what happens

    def hit(self, which, kind):
        """Damage a stored chunk; its time stays, since nobody has put it."""
        there = sorted(key for key in self._store.objects if "/chunks/" in key and not self.stands(key))
        if there:
            key = there[which % len(there)]
            data, put_ns = self._store.objects.pop(key)
            if kind != "lost":
                flipped = data[:-1] + bytes([data[-1] ^ 1])
                self._store.objects[key] = (flipped if kind == "flipped" else data[:-1]), put_ns
            self._left[key] = self._store.objects.get(key)
            self.ever.add(key)
            self._store.changed += 1

    def alter(self, share):
        """The trainer writes other bytes into a step directory, also under a scrub that has looked at it before."""
        self._altered.add(share)
        self._fill()

    def scrub(self, remote, node, sample):
        """As the daemon does it; what was found, None = it failed."""
        options = ScrubOptions(node, sample, compression="none", random=random.Random(0).random)
        try:
            return scrub(remote, self.disks[node], options)
        except StoreError:
            return None

    def _fill(self):
        for node, disk in self.disks.items():
            disk.chunks.clear()
            mine = [at for at, share in enumerate(SHARES) if share[0] == node]
            for at in sorted(mine, key=self._altered.__contains__):
                _, root, files = self._shares[at]
                root = _altered(root, files) if at in self._altered else root
                for path, digest in self._digests(at):
                    disk.chunks.setdefault(digest, ((f"{root}/{path}", 0, len(files[path])),))

    def _digests(self, share):
        return [(file.path, file.digest) for file in self._shares[share][0].part.files]

    # -- what is known

    def stands(self, key):
        """Whether a chunk still is as damage has left it."""
        return key in self._left and self._store.objects.get(key) is self._left[key]

    def saw(self, union):
        """Remember what a commit is made of."""
        needed = frozenset(keys.chunk_key("run", ref.key) for part in union.parts.values() for ref in part.chunks)
        content = frozenset((path, entry.digest) for path, (_, entry) in union.files.items())
        self._known[union.commit.digest] = needed, (union.step, content)

    def hurt(self):
        """The commits that damage has hit at some time, and those with the same files: they are marked with them."""
        contents = {content for needed, content in self._known.values() if needed & self.ever}
        return {digest for digest, (_, content) in self._known.items() if content in contents}

    def marks(self):
        """The commits that are marked as bad now."""
        return {key.rpartition("/")[2] for key in self._store.objects if key.startswith(keys.bad_prefix("run"))}

    # -- what must hold

    def need_reasons(self):
        """No mark on what was never damaged."""
        for digest in self.marks() & self._known.keys():
            assert self._known[digest][0] & self.ever, f"commit {digest} is marked as bad, and was never damaged"

    def need_found(self, valid):
        """After every node has scrubbed: what can be healed is whole and free of marks, all else is marked."""
        intact = {digest for at in range(len(SHARES)) if at not in self._altered for _, digest in self._digests(at)}
        for commit in valid:
            left = {key for key in self._known[commit][0] if self.stands(key)}
            healable = {key for key in left if key.rpartition("/")[2].partition(".")[0] in intact}
            assert not healable, f"nobody has healed {healable}"
            assert bool(left) == (commit in self.marks()), f"commit {commit}: damaged {left}, marks {self.marks()}"

    def pickable(self, valid):
        """Those of these commits that nothing speaks against."""
        marked = {self._known[digest][1] for digest in self.marks() & self._known.keys()}
        return {digest for digest in valid if self._known[digest][1] not in marked}


def _altered(root, files):
    """The same files in another directory, with other bytes."""
    home = Path(f"{root}-altered")
    if not home.exists():
        home.mkdir()
        for path, data in files.items():
            (home / path).write_bytes(bytes(255 - byte for byte in data))
    return str(home)
