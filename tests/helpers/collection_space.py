"""What collections have left of a store when they are done, and how they are asked (collection_world.py)."""

from __future__ import annotations

from collections import Counter

from ckptsync.sync.collect_plan import standing, swept
from ckptsync.sync.collect_survey import survey
from ckptsync.sync.remote import Remote


class SimRemote(Remote):
    """A run whose clock is simulated, too."""

    def clock_offset_ns(self, node, now_ns=None):
        return super().clock_offset_ns(node, now_ns or self.local_ns)


def need_space(remote):
    """Nothing is left that no part needs, and no part that no commit can ever need."""
    seen = survey(remote, young_ns=None)
    gone = swept(seen.collections)
    needed, steps = set(), {commit.split("/")[2] for commit in standing(seen.tree, gone)}
    for part, needs in seen.needs(seen.tree.parts.keys() - gone):
        needed |= needs.chunks
        assert part not in gone
    assert seen.chunks.keys() <= needed
    assert {part.split("/")[2] for part in seen.tree.parts.keys() & gone} <= steps
    names = {key.replace("/parts/", "/ready/").removesuffix(".json.zst") for key in seen.tree.parts.keys() - gone}
    assert seen.tree.ready <= names
    assert not seen.tree.commits.keys() & gone
    assert all(each.sweep is not None for each in seen.collections)


def happened(remote):
    """What a history was made of, each counted once: a machine in which nothing happens proves nothing."""
    collections = remote.collections()
    return Counter(
        {
            "swept a commit": any("/commits/" in key for each in collections for key in each.sweep),
            "swept a chunk": any("/chunks/" in key for each in collections for key in each.sweep),
            "spared": any(each.sweep != each.keys for each in collections),
            "fresh key": any("." in meta.key for meta in remote.store.list("run/chunks")),
        }
    )
