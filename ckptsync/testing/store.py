"""What every store must do, as tests: the protocol of ckptsync/store/base.py, executable.

Subclass it, give it two clients of one fresh and empty store, and run pytest:

```python
# in conftest.py: pytest.register_assert_rewrite("ckptsync.testing.store")
class TestMyStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return MyStore(tmp_path)

    @pytest.fixture
    def second(self, tmp_path):
        return MyStore(tmp_path)
```
"""

# ruff: noqa: D102 - the names of tests say what they prove
from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from ckptsync.errors import CorruptObject, KeyMissing
from ckptsync.store.base import Store

__all__ = ["StoreContract"]

_MAX = 20 * 1024 * 1024
_CHUNK = 16 * 1024 * 1024
_TORN_KEYS = tuple(f"torn/{number}" for number in range(4))
_TORN_SIZE = 256 * 1024

_CHILD = """
import sys
{source}
print("open", flush=True)
for number in range(200):  # bounded: an orphan must not fill the disk
    key = "torn/" + str(number % 4)
    data = bytes([number % 251]) * {size}
    store.put(key, data)
    store.put_new("torn-new/" + sys.argv[1] + "-" + str(number), data)
    if number == 0:
        print("writing", flush=True)
"""


class StoreContract:
    """The contract. Class attributes say how long it may take.

    Attributes:
        writers: clients that race for one key.
        races: keys they race for.
        many: objects in the long list; more than a page (1000).
        kills: how often a writer is killed.
    """

    writers: ClassVar[int] = 8
    races: ClassVar[int] = 20
    many: ClassVar[int] = 1005
    kills: ClassVar[int] = 3

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        """A client of a fresh, empty store."""
        raise NotImplementedError

    @pytest.fixture
    def second(self) -> Iterator[Store]:
        """Another client of the same store."""
        raise NotImplementedError

    @pytest.fixture
    def filler(self, store: Store) -> Store:
        """A client of the same store that puts many objects; a faster one, if there is any."""
        return store

    @pytest.fixture
    def child_source(self) -> str | None:
        """Python source that binds `store` to a client of the same store in another process; None = cannot be."""
        return None

    def test_created_once(self, store: Store, second: Store) -> None:
        assert store.put_new("run/a", b"first") is True
        assert second.put_new("run/a", b"second") is False
        assert second.get("run/a", max_size=_MAX) == b"first"

    def test_put_replaces(self, store: Store, second: Store) -> None:
        store.put("run/a", b"longer than what follows")
        second.put("run/a", b"short")
        assert store.get("run/a", max_size=_MAX) == b"short"

    def test_put_after_create_and_create_after_put(self, store: Store) -> None:
        store.put_new("run/a", b"1")
        store.put("run/a", b"2")
        assert store.get("run/a", max_size=_MAX) == b"2"
        assert store.put_new("run/a", b"3") is False

    def test_absent(self, store: Store) -> None:
        assert store.head("run/none") is None
        assert list(store.list("run")) == []
        assert store.children("run") == ()
        store.delete("run/none")
        with pytest.raises(KeyMissing, match="run/none"):
            store.get("run/none", max_size=_MAX)

    def test_a_prefix_is_no_object(self, store: Store) -> None:
        store.put("run/a/b", b"x")
        assert store.head("run/a") is None
        with pytest.raises(KeyMissing):
            store.get("run/a", max_size=_MAX)
        assert list(store.list("run/a/b")) == []
        assert store.children("run/a/b") == ()

    def test_delete_is_seen_by_the_other(self, store: Store, second: Store) -> None:
        store.put("run/a", b"x")
        assert second.head("run/a") is not None
        second.delete("run/a")
        assert store.head("run/a") is None
        assert list(store.list("run")) == []
        assert store.put_new("run/a", b"again") is True

    def test_head(self, store: Store) -> None:
        store.put("run/a", b"12345")
        meta = store.head("run/a")
        assert meta is not None
        assert (meta.key, meta.size) == ("run/a", 5)
        assert meta.modified_ns is None or meta.modified_ns > 10**18

    @pytest.mark.parametrize("size", [0, 1, 4096, _CHUNK + 123], ids=["empty", "one", "page", "chunk"])
    def test_bytes_come_back(self, store: Store, second: Store, size: int) -> None:
        data = random.Random(size).randbytes(size)  # noqa: S311 - to be repeated, not to be secret
        assert store.put_new("run/new", data) is True
        store.put("run/put", data)
        assert second.get("run/new", max_size=max(size, 1)) == data
        assert second.get("run/put", max_size=max(size, 1)) == data
        assert [meta.size for meta in second.list("run")] == [size, size]

    def test_larger_than_allowed_is_refused(self, store: Store) -> None:
        store.put("run/a", b"12345")
        assert store.get("run/a", max_size=5) == b"12345"
        with pytest.raises(CorruptObject, match="5 bytes"):
            store.get("run/a", max_size=4)

    @pytest.mark.parametrize(
        "name", ["aZ09._-", "node@0123", "a%2Fb", "a%252Fb", "%2E%2E", "...", "-x", "%C3%A9", "x" * 200]
    )
    def test_names(self, store: Store, second: Store, name: str) -> None:
        key = f"run/{name}/{name}"
        assert store.put_new(key, name.encode()) is True
        assert second.get(key, max_size=_MAX) == name.encode()
        assert [meta.key for meta in second.list("run")] == [key]
        assert second.children("run") == (name,)
        second.delete(key)
        assert store.head(key) is None

    @pytest.mark.parametrize(
        "key", ["", "/a", "a/", "a//b", "a/../b", ".", "..", "a/.", "a b", "é", "a\0", "a#1", "x" * 1025]
    )
    def test_bad_keys_are_refused(self, store: Store, key: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.put_new(key, b""),
            lambda: store.put(key, b""),
            lambda: store.get(key, max_size=1),
            lambda: store.head(key),
            lambda: store.delete(key),
        ]
        if key:
            calls += [lambda: list(store.list(key)), lambda: store.children(key)]
        for call in calls:
            with pytest.raises(ValueError, match="not a valid key"):
                call()

    def test_list_is_ordered_and_knows_its_siblings(self, store: Store, second: Store) -> None:
        names = ["run-1/a", "run-1/b/c", "run-1/b-c", "run-1/b.c", "run-10/a", "run-1-/a"]
        for name in names:
            store.put(name, b"x")
        assert [meta.key for meta in second.list("run-1")] == ["run-1/a", "run-1/b-c", "run-1/b.c", "run-1/b/c"]
        assert [meta.key for meta in second.list("")] == sorted(names)
        assert second.children("run-1") == ("b",)
        assert second.children("") == ("run-1", "run-1-", "run-10")

    def test_what_was_written_is_listed_at_once(self, store: Store, second: Store) -> None:
        for number in range(10):
            store.put_new(f"run/{number}/x", b"")
            assert len(list(second.list("run"))) == number + 1
            assert len(second.children("run")) == number + 1

    def test_long_lists_are_whole(self, filler: Store, store: Store) -> None:
        names = [f"run/{number:06d}/x" for number in range(self.many)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: filler.put(name, b"x"), names))
        assert [meta.key for meta in store.list("run")] == names
        assert store.children("run") == tuple(name.split("/")[1] for name in names)

    def test_one_winner_per_race(self, store: Store, second: Store) -> None:
        if not store.capabilities.atomic_create:
            pytest.skip("the store does not claim atomic creation")
        names = [f"run/race-{number}" for number in range(self.races)]
        with ThreadPoolExecutor(self.races) as pool:  # all races at once: some servers take seconds for each
            winners = list(pool.map(lambda key: self._race([store, second], key), names))
        for key, won in zip(names, winners, strict=True):
            assert len(won) == 1
            assert second.get(key, max_size=_MAX) == won[0]

    def _race(self, clients: Sequence[Store], key: str) -> list[bytes]:
        """All writers at once; what the winners wrote."""
        barrier = threading.Barrier(self.writers)

        def write(writer: int) -> bytes | None:
            data = f"writer {writer} ".encode() * 1000
            barrier.wait()
            return data if clients[writer % len(clients)].put_new(key, data) else None

        with ThreadPoolExecutor(self.writers) as pool:
            return [data for data in pool.map(write, range(self.writers)) if data is not None]

    def test_killed_writers_leave_whole_objects_only(self, store: Store, child_source: str | None) -> None:
        if child_source is None:
            pytest.skip("the store cannot be reached from another process")
        rng = random.Random(0)  # noqa: S311 - to be repeated, not to be secret
        for number in range(self.kills):
            source = _CHILD.format(source=child_source, size=_TORN_SIZE)
            command = [sys.executable, "-c", source, str(number)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
                assert child.stdout is not None
                assert child.stdout.readline() == b"open\n"
                assert child.stdout.readline() == b"writing\n"
                for _ in range(rng.randrange(1, 20)):
                    self._assert_whole(store)
                child.kill()
            self._assert_whole(store)

    def _assert_whole(self, store: Store) -> None:
        data = store.get(_TORN_KEYS[0], max_size=_TORN_SIZE)
        assert len(data) == _TORN_SIZE
        assert data == data[:1] * _TORN_SIZE
        for meta in store.list("torn"):
            assert meta.key in _TORN_KEYS
            assert meta.size == _TORN_SIZE
        for meta in store.list("torn-new"):
            assert meta.key.count("-") == 2
            assert meta.size == _TORN_SIZE
        assert store.children("") == ("torn", "torn-new")
