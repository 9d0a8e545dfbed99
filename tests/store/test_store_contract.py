"""Every adapter against the same contract; S3 against a real server."""

from __future__ import annotations

import uuid

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from ckptsync.store.fsspec import FsspecStore, open_fsspec
from ckptsync.store.objects import open_objects
from ckptsync.testing.store import StoreContract

OBJECTS = "from ckptsync.store.objects import open_objects; store = open_objects({!r})"
FSSPEC = "from ckptsync.store.fsspec import open_fsspec; store = open_fsspec({!r})"
DIRECTORY = """
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from ckptsync.store.fsspec import FsspecStore
store = FsspecStore(DirFileSystem({!r}, LocalFileSystem()), "", url="dir://test")
"""


@pytest.fixture
def fresh():
    return uuid.uuid4().hex


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self, fresh):
        return open_objects(f"memory://{fresh}/some/prefix")

    @pytest.fixture
    def second(self, fresh):
        return open_objects(f"memory://{fresh}/some/prefix")


class TestFile(StoreContract):
    @pytest.fixture
    def url(self, tmp_path):
        return (tmp_path / "not there" / "store").as_uri()

    @pytest.fixture
    def store(self, url):
        return open_objects(url)

    @pytest.fixture
    def second(self, url):
        return open_objects(url)

    @pytest.fixture
    def child_source(self, url):
        return OBJECTS.format(url)


@pytest.mark.usefixtures("s3_environ")
class TestS3(StoreContract):
    races = 10  # all at once: SeaweedFS lets those that lose wait for a second, one after the other
    kills = 1

    @pytest.fixture
    def url(self, s3_server, fresh):
        return s3_server.url(f"some/{fresh}")

    @pytest.fixture
    def store(self, url):
        return open_objects(url)

    @pytest.fixture
    def second(self, url):
        return open_objects(url)

    @pytest.fixture
    def child_source(self, url):
        return OBJECTS.format(url)


@pytest.fixture(scope="module")
def filesystems(s3_server):
    """Two s3fs clients for all tests: each takes seconds to build."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environ.items():
            patch.setenv(name, value)
        stores = [open_fsspec(s3_server.url()), open_fsspec(s3_server.url())]
        for store in stores:
            store.head("connected")
        yield [store._fs for store in stores]
        for store in stores:
            store.close()


@pytest.mark.usefixtures("s3_environ")
class TestS3Fs(StoreContract):
    races = 3
    writers = 4  # each of those that lose waits for a second, see above

    @pytest.fixture
    def path(self, s3_server, fresh):
        return f"{s3_server.bucket}/some/{fresh}"

    @pytest.fixture
    def store(self, filesystems, path):
        return FsspecStore(filesystems[0], path, url=f"s3://{path}")

    @pytest.fixture
    def second(self, filesystems, path):
        return FsspecStore(filesystems[1], path, url=f"s3://{path}")

    @pytest.fixture
    def filler(self, path):
        return open_objects(f"s3://{path}")


class TestFsspecMemory(StoreContract):
    @pytest.fixture
    def store(self, fresh):
        return open_fsspec(f"memory://{fresh}/prefix")

    @pytest.fixture
    def second(self, fresh):
        return open_fsspec(f"memory://{fresh}/prefix")


class TestFsspecLocal(StoreContract):
    @pytest.fixture
    def url(self, tmp_path):
        return f"local://{tmp_path}/store"

    @pytest.fixture
    def store(self, url):
        return open_fsspec(url)

    @pytest.fixture
    def second(self, url):
        return open_fsspec(url)

    @pytest.fixture
    def child_source(self, url):
        return FSSPEC.format(url)


class TestFsspecRename(StoreContract):
    """A file system that is known for nothing: temporary names and renames, as for sftp, hdfs, smb."""

    many = 300

    @pytest.fixture
    def root(self, tmp_path):
        (tmp_path / "store").mkdir()
        return str(tmp_path / "store")

    @pytest.fixture
    def store(self, root):
        return FsspecStore(DirFileSystem(root, LocalFileSystem()), "", url="dir://test")

    @pytest.fixture
    def second(self, root):
        return FsspecStore(DirFileSystem(root, LocalFileSystem()), "", url="dir://test")

    @pytest.fixture
    def child_source(self, root):
        return DIRECTORY.format(root)
