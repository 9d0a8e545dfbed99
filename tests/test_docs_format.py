"""docs/format.md says what is so: a reader written from its text alone works; its example is what the code writes."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path
from random import Random
from types import SimpleNamespace
from urllib.parse import quote, unquote_to_bytes

import pytest
import zstandard
from blake3 import blake3
from pages import ROOT, blocks

from ckptsync.chunks.codec import encode
from ckptsync.cli.main import main
from ckptsync.model.manifest import ChunkRef, Commit, DirEntry, Extent, FileEntry, LinkEntry, Part
from ckptsync.model.parse import parse_commit, parse_part
from ckptsync.model.step import Level
from ckptsync.store import keys
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.fingerprint import differences, fingerprint

FORMAT = (ROOT / "docs/format.md").read_text()


def unquote_path(text):
    return os.fsdecode(unquote_to_bytes(text))


def digest(data):
    return blake3(data).hexdigest()


def decode_chunk(blob, size):
    """Sections Chunks to Codec 3, word for word."""

    def number(start, length):
        return int.from_bytes(blob[start : start + length], "little")

    def unzstd(frame, length):
        assert zstandard.get_frame_parameters(frame).content_size == length
        return zstandard.ZstdDecompressor().decompress(frame)

    assert (blob[:4], blob[4]) == (b"CKSC", 1)
    codec, width, header = blob[6], blob[7], number(10, 2)
    assert (number(8, 2), number(12, 4)) == (0, size)
    if codec == 0:
        return blob[header:]
    if codec == 1:
        return unzstd(blob[header:], size)
    floats = codec == 3
    widths = {2: (1,), 4: (2, 1), 8: (4, 2, 1)}[width] + (() if floats else (1,))
    count, offset, parts = (size // (2 * width) * 2 if floats else size // width), header, []

    def part(raw):
        nonlocal offset
        stored = number(16 + 4 * len(parts), 4)
        found = blob[offset : offset + stored]
        offset += stored
        parts.append(found if stored == raw else unzstd(found, raw))

    for each in widths:
        part(count * each)
    if floats:
        rotation, base = blob[16 + 4 * (len(widths) + 2) :][:2]
        part(count // 2)
        places = [place for pair in parts[-1] for place in (pair & 15, pair >> 4)]
        part(places.count(15))
        outliers = iter(parts[-1])
    words = bytearray()
    for at in range(count):
        word = b"".join(found[at * each : (at + 1) * each] for found, each in zip(parts, widths, strict=False))
        if floats:
            exponent = next(outliers) if places[at] == 15 else (places[at] + base) % 256
            upper = exponent << 8 | word[-1]
            word = word[:-1] + (((upper << 16 | upper) >> rotation) & 0xFFFF).to_bytes(2, "little")
        words += word
    return bytes(words) + blob[offset:]


class Reader:
    """`Reading a step`, for a store that is a directory."""

    def __init__(self, store, run):
        self.base = Path(store, quote(run, safe=""))
        self.run = self.document("run.json", "run")

    def document(self, key, kind, *, packed=False):
        data = (self.base / key).read_bytes()
        if packed:
            data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        document = json.loads(data)
        assert (document["kind"], document["format"][0]) == (kind, 1)
        assert data == json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
        name = Path(key).name.removesuffix(".zst").removesuffix(".json").rpartition("@")[2]
        assert name in ("run", "list", "sweep", digest(data))
        return document

    def void(self):
        found = set()
        for gc in self.base.glob("gc/*"):
            last = gc / "sweep" if (gc / "sweep").exists() else gc / "list"
            found |= set(self.document(last.relative_to(self.base), "collection", packed=True)["keys"])
        return found

    def commits(self):
        void = self.void()
        for path in self.base.glob("steps/*/commits/*.json"):
            commit = self.document(path.relative_to(self.base), "commit")
            names = [name.rpartition("@") for name in commit["parts"]]
            own = f"steps/{commit['step']:012d}"
            under = [f"{own}/parts/{quote(node, safe='')}@{digest}.json.zst" for node, _, digest in names]
            used = {f"{self.base.name}/{key}" for key in (*under, f"{own}/commits/{path.name}")}
            if not used & void:
                yield [self.document(key, "part", packed=True) for key in under]

    def newest(self):
        def saved(parts):
            return max(part["saved_ns"] for part in ([p for p in parts if p["closed"]] or parts))

        return max(self.commits(), key=saved)

    def chunk(self, part, index):
        key, size = part["chunks"][index]
        raw = decode_chunk((self.base / "chunks" / key[:2] / key).read_bytes(), size)
        assert (len(raw), digest(raw)) == (size, key[:64])
        return raw

    def latest_of(self, parts, kind):
        found = {}
        for part in sorted(parts, key=lambda part: part["node"]):
            for entry in part[kind]:
                written = entry["mtime_ns"] + part["offset_ns"]
                if entry["path"] not in found or written > found[entry["path"]][0]:
                    found[entry["path"]] = (written, part, entry)
        return {unquote_path(path): (part, entry) for path, (_, part, entry) in found.items()}

    def restore(self, parts, target):
        step = target / unquote_path(parts[0]["name"])
        dirs = self.latest_of(parts, "dirs")
        for path in sorted(dirs):
            (step / path).mkdir(parents=True, exist_ok=True)
        for path, (part, entry) in self.latest_of(parts, "files").items():
            ranges = (self.chunk(part, c)[start : start + length] for c, start, length in entry["extents"])
            content = b"".join(ranges)
            assert (len(content), digest(content)) == (entry["size"], entry["blake3"])
            (step / path).write_bytes(content)
            (step / path).chmod(entry["mode"])
            os.utime(step / path, ns=(0, entry["mtime_ns"]))
        for part in reversed(parts):
            for link in part["links"]:
                (step / unquote_path(link["path"])).unlink(missing_ok=True)
                (step / unquote_path(link["path"])).symlink_to(unquote_path(link["target"]))
        for path, (_, entry) in sorted(dirs.items(), reverse=True):
            (step / path).chmod(entry["mode"])
            os.utime(step / path, ns=(0, entry["mtime_ns"]))
        return step


def write_config(directory, name, *, count, store):
    file = directory / f"{name}.toml"
    file.write_text(
        f'[run]\nname = "run-1"\noutput_dir = "{directory}/{name}"\nstate_dir = "{directory}/state-{name}"\n'
        f'[node]\nname = "{name}"\ncount = {count}\n[watch]\nsettle = "2s"\n[upload]\nstore = "file://{store}"\n'
    )
    return str(file)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A two-node verl step with odd names, private files and real numbers, pushed by both nodes."""
    tmp_path = tmp_path_factory.mktemp("nodes")
    store = tmp_path / "store"
    first = verl_step(tmp_path / "node-a", 20, world=2, ranks=[0], hf=True, n=300_000, driver=False)
    (first / "actor/huggingface/model.safetensors").chmod(0o600)
    (first / "actor/huggingface/caf\u00e9 100%.txt").write_bytes(b"menu")
    (first / os.fsdecode(b"actor/huggingface/\xff.bin")).write_bytes(b"again and " * 7_000)
    (first / "actor/huggingface/newest").symlink_to("model.safetensors")
    (first / "actor/huggingface/empty.txt").touch()
    random = Random(20)
    for name, code, scale in (("halves", "e", 1.0), ("floats", "f", 0.02)):
        numbers = struct.pack(f"<100000{code}", *(random.gauss(0, scale) for _ in range(100_000)))
        (first / f"actor/huggingface/{name}.bin").write_bytes(numbers + b"odd")
    second = verl_step(tmp_path / "node-b", 20, world=2, ranks=[1], n=300_000)
    nodes = [write_config(tmp_path, name, count=2, store=store) for name in ("node-a", "node-b")]
    codes = [main(["push", "--config", config]) for config in nodes]
    return SimpleNamespace(store=store, config=nodes[0], first=first, second=second, codes=codes)


def expected(*directories):
    """The union of two shares; a directory is as the node had it that changed it last. Link times are not kept."""
    union = {}
    for found in map(fingerprint, directories):
        for path, entry in found.items():
            if not path.endswith("/newest") and (path not in union or entry[3] > union[path][3]):
                union[path] = entry
    return union


def test_a_reader_written_from_the_text_restores_what_two_nodes_pushed(written, tmp_path):
    assert written.codes == [4, 0], "the second node's part makes the step whole"
    reader = Reader(written.store, "run-1")
    step = reader.restore(reader.newest(), tmp_path / "restored")
    found = fingerprint(step)
    assert found.pop("actor/huggingface/newest")[1] > 0
    assert (step / "actor/huggingface/newest").readlink() == Path("model.safetensors")
    assert differences(expected(written.first, written.second), found) == []
    codecs = {path.read_bytes()[6] for path in (written.store / "run-1/chunks").glob("*/*")}
    assert codecs == {0, 1, 2, 3}, "the step exercises every codec"


def test_the_reader_obeys_collections(written, tmp_path):
    reader = Reader(written.store, "run-1")
    commit = next((written.store / "run-1/steps").glob("*/commits/*.json")).relative_to(written.store).as_posix()
    gc = written.store / "run-1/gc/000001"

    def collection(*names, **more):
        document = {"format": [1, 0], "keys": [*names], "kind": "collection", "run": "run-1", **more}
        document["run_id"] = reader.run["run_id"]
        return zstandard.compress(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())

    def ours():
        return main(["pull", "--dry-run", "--config", written.config, "--dest", str(tmp_path / "dest")])

    assert (len(list(reader.commits())), ours()) == (1, 0)
    gc.mkdir(parents=True)
    (gc / "list").write_bytes(collection(commit, keeps=[]))
    assert (len(list(reader.commits())), ours()) == (0, 5)
    (gc / "sweep").write_bytes(collection())
    assert (len(list(reader.commits())), ours()) == (1, 0)


def test_the_example_is_what_the_code_writes():
    text, blob, now_ns = b'{"step": 7}', b"hello hello hello hello hello\n", 1_800_000_000 * 10**9
    files = (
        FileEntry("caf\u00e9 100%.json", 11, 0o644, now_ns - 5 * 10**9, digest(text), (Extent(0, 0, 11),)),
        FileEntry("weights.bin", 30, 0o600, now_ns, digest(blob), (Extent(0, 11, 30),)),
    )
    part = Part(
        run="qwen3-grpo",
        run_id="00112233445566778899aabbccddeeff",
        step=7,
        name="step-7",
        below="",
        node="node-0",
        node_id="ffeeddccbbaa99887766554433221100",
        layout="plain",
        level=Level.FULL,
        saved_ns=now_ns,
        closed=False,
        previous_ns=0,
        offset_ns=0,
        files=files,
        links=(LinkEntry("newest", "weights.bin"),),
        dirs=(DirEntry("", 0o755, now_ns),),
        chunks=(ChunkRef(digest(text + blob), 41),),
    )
    commit = Commit(part.run, part.run_id, 7, (part.id,))
    example = FORMAT[FORMAT.index("## Example") :]
    documents = [block.replace("\n", "") for block in blocks(example, "json")]
    assert documents == [part.to_bytes().decode(), commit.to_bytes().decode()]
    assert (parse_part(documents[0].encode()), parse_commit(documents[1].encode())) == (part, commit)
    part_key, commit_key, chunk, chunk_key = (block.replace("\n", "") for block in blocks(example, "text"))
    assert part_key == keys.part_key(part.run, 7, str(part.id))
    assert commit_key == keys.commit_key(part.run, 7, commit.digest)
    assert chunk_key == keys.chunk_key(part.run, part.chunks[0].key)
    assert bytes.fromhex(chunk) == encode(text + blob, compression="none")
    assert decode_chunk(bytes.fromhex(chunk), 41) == text + blob


def test_every_field_of_a_part_is_described():
    fields = set(json.loads(blocks(FORMAT, "json")[0].replace("\n", "")))
    section = FORMAT[FORMAT.index("### Parts") : FORMAT.index("### Commits")]
    first_cells = " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| "))
    assert fields <= set(re.findall(r"`([a-z0-9_]+)`", first_cells))
