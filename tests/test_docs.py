"""The documentation says what is so: its example, its commands, its links; and a reader written from it alone works."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from urllib.parse import quote, unquote_to_bytes

import pytest
import zstandard
from blake3 import blake3

import ckptsync
from ckptsync.actions.launched import Launch, launch_of
from ckptsync.chunks.codec import encode
from ckptsync.cli.main import main
from ckptsync.config import Config, load
from ckptsync.layouts import registry
from ckptsync.model.manifest import ChunkRef, Commit, DirEntry, Extent, FileEntry, LinkEntry, Part
from ckptsync.model.parse import parse_commit, parse_part
from ckptsync.model.step import Level
from ckptsync.store import keys
from ckptsync.testing.checkpoints import verl_step
from ckptsync.testing.fingerprint import differences, fingerprint

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
FORMAT = (ROOT / "docs/format.md").read_text()


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


# -- the store format: a reader from the text alone (json, zstandard, blake3)


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


# -- commands


def spans(page):
    """What a reader would type: lines of sh blocks, words of lists in yaml and python blocks, and inline code."""
    text = page.read_text()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (line for block in blocks(text, "sh") for line in block.splitlines())
    lists = [*blocks(text, "yaml"), *blocks(text, "python")]
    yield from (re.sub(r"""[]["',() ]+""", " ", line) for block in lists for line in block.splitlines())
    yield from (code.replace("\\|", "/") for code in re.findall(r"`([^`\n]+)`", prose))


def invocations():
    for page in PAGES:
        for span in spans(page):
            for match in re.finditer(r"(?:^|[\s/;\"])ckptsync ((?:[a-z]+\b ?)+)([^#;&]*)", span):
                yield pytest.param(match[1].split(), match[2], id=f"{page.name}: {match[0].strip()}")


def help_of(words, capsys):
    """The help of the command that `words` begin with: one word, or two for those with sub-commands."""
    assert main([*words[:2], "--help"]) == 0 or main([words[0], "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("words", "rest"), list(invocations()))
def test_every_command_and_option_in_the_documentation_exists(words, rest, capsys):
    shown = help_of(words, capsys)
    ours, _, _ = rest.partition(" -- ")  # what follows is the trainer's
    options = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", ours)
    assert [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", shown)] == []


FOREIGN = {"--requeue", "--max-restarts"}  # of sbatch and torchrun


def test_every_option_and_variable_that_the_page_on_several_nodes_names_exists(capsys):
    page = ROOT / "docs/multi-node.md"
    named = {span.split()[0] for span in spans(page) if span.startswith("--")}
    main(["pull", "--help"])
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out)) | FOREIGN
    assert {"--timeout", "--avoid", "--ranks", "--scope"} <= named <= known
    sources = "".join(path.read_text() for path in (ROOT / "ckptsync").rglob("*.py"))
    variables = set(re.findall(r"\b(?:CKPTSYNC|SLURMD?|JOB|NODE)_[A-Z_]+\b", page.read_text()))
    assert {"CKPTSYNC_ATTEMPT", "SLURM_NNODES", "JOB_COMPLETION_INDEX"} <= variables
    assert [name for name in variables if f'"{name}"' not in sources and f"'{name}'" not in sources] == []


def test_the_page_on_several_nodes_has_the_exit_codes_of_pull():
    row = next(
        line for line in (ROOT / "docs/commands.md").read_text().splitlines() if line.startswith("| `ckptsync pull")
    )
    codes = re.findall(r"\d", row.rpartition(" | ")[2])
    assert ["0", *codes] == re.findall(r"^\| (\d) \|", (ROOT / "docs/multi-node.md").read_text(), re.MULTILINE)


def test_the_recipes_find_out_the_nodes_and_the_attempt(tmp_path):
    """What the recipes set is what a launch is read from."""
    text = (ROOT / "docs/multi-node.md").read_text()
    (tmp_path / "run.toml").write_text(
        '[run]\noutput_dir = "/d"\n[upload]\nstore = "s3://b/p"\n' + blocks(text, "toml")[0]
    )
    config = load(str(tmp_path / "run.toml"), {})
    assert config.peer.listen == "10.0.0.1:7070"
    for block in blocks(text, "yaml"):
        labels = dict(re.findall(r"name: (CKPTSYNC_[A-Z]+)\n\s+value(?:From)?: (.*)", block))
        env = {name: "label-1" if "fieldRef" in value else json.loads(value) for name, value in labels.items()}
        launch = launch_of(config, env, nodes=None, attempt=None, embedded=False)
        assert launch == Launch(int(env["CKPTSYNC_NODES"]), "label-1")
    assert len(blocks(text, "yaml")) == 2


def test_the_table_of_commands_is_complete(capsys):
    table = (ROOT / "docs/commands.md").read_text()
    rows = {m[1]: m[0] for m in re.finditer(r"^\| `ckptsync ((?:[a-z]+ ?)+).*$", table, re.MULTILINE)}
    main(["--help"])
    known = re.findall(r"^  ([a-z]+)  ", capsys.readouterr().out.partition("Commands:")[2], re.MULTILINE)
    assert sorted({name.split()[0] for name in rows}) == sorted(known)
    for name, row in rows.items():
        main([*name.split(), "--help"])
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out))
        assert [option for option in options - {"--help", "--config", "--output-dir"} if option not in row] == []


def test_exit_codes_are_those_of_the_help(capsys):
    main(["--help"])
    codes = set(re.findall(r"(?:^|  )(\d)  \w", capsys.readouterr().out, re.MULTILINE))
    commands = (ROOT / "docs/commands.md").read_text()
    assert codes == set(map(str, range(10)))
    assert codes == set(re.findall(r"^\| (\d) \|", commands, re.MULTILINE))


# -- configuration


def tables(model, path=""):
    for key, field in model.model_fields.items():
        dotted = f"{path}.{key}".lstrip(".")
        if hasattr(field.annotation, "model_fields"):
            yield from tables(field.annotation, dotted)
        else:
            yield path, key


def test_the_example_configuration_has_exactly_the_keys_of_the_model():
    table, found = "", []
    for line in (ROOT / "config.example.toml").read_text().splitlines():
        if header := re.fullmatch(r"\[([a-z.]+)\]", line):
            table = header[1]
        elif setting := re.match(r"#?([a-z_]+) = ", line):
            found.append((table, setting[1]))
    assert sorted(found) == sorted(tables(Config))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_that_the_documentation_names_exist(page):
    named = set(re.findall(r"`\[([a-z.]+)\] ([a-z_]+)", page.read_text()))
    assert named - set(tables(Config)) == set()


def test_roles_in_json_blocks_are_policies():
    texts = [(ROOT / "docs" / name).read_text() for name in ("retention.md", "operations.md")]
    roles = [json.loads(block) for text in texts for block in blocks(text, "json")]
    assert len(roles) == 3
    for role in roles:
        assert role["Version"] == "2012-10-17"
        assert all({"Effect", "Action", "Resource"} <= statement.keys() for statement in role["Statement"])
    deleting = [
        s["Resource"]
        for role in roles
        for s in role["Statement"]
        if s["Effect"] == "Allow" and "s3:DeleteObject" in s["Action"]
    ]
    below = [resource.rpartition("/")[0].rpartition("/")[2] for resource in deleting[0]]
    assert below == ["chunks", "steps", "tags", "bad", "pins"]
    assert len(deleting) == 1


def test_settings_in_toml_blocks_load(tmp_path):
    for number, block in enumerate(blocks((ROOT / "docs/operations.md").read_text(), "toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(f'[run]\noutput_dir = "/d"\n{block}')
        assert load(str(file), {}).upload.store == "file:///nfs/checkpoints"


# -- the rest


def anchors(page):
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        aim = page.parent / path if path else page
        assert aim.exists(), target
        assert not anchor or anchor in anchors(aim), target


def test_pages_that_the_code_refers_to_exist():
    sources = [*(ROOT / "ckptsync").rglob("*.py"), ROOT / "Makefile", *(ROOT / "systemd").iterdir()]
    named = {name for source in sources for name in re.findall(r"docs/[a-z_]+\.md", source.read_text())}
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_changelog_tells_of_this_version():
    newest = re.search(r"^## \[?([^\]\n]+)\]?(?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = newest[2] if newest[1] == "Unreleased" else newest[1]
    assert version == ckptsync.__version__
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()


def test_make_targets_in_the_documentation_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for span in spans(page) for name in re.findall(r"^make ([a-z-]+)", span)}
    assert {"demo", "test", "check"} <= named <= targets


# -- the layout of CONTRIBUTING.md


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """The example, installed as its package would be."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    info = tmp_path / "site/acme_trainer-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-trainer\nVersion: 1.0\n")
    table, entry = blocks(text, "toml")[0].splitlines()
    group, (name, value) = re.search(r'"(.+)"', table)[1], re.fullmatch(r'(\w+) = "(.+)"', entry).groups()
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    (tmp_path / "site/acme_trainer.py").write_text(blocks(text, "python")[0])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield registry.load("acme")
    del sys.modules["acme_trainer"]  # another package of this name must not get this one's code


def test_the_example_layout_works(acme, tmp_path, capsys):
    step = tmp_path / "out/save-5"
    step.mkdir(parents=True)
    for name in ("model-0-of-2.pt", "model-1-of-2.pt", "optim-0-of-2.pt"):
        (step / name).write_bytes(b"opaque")
    (step / "DONE").touch()
    assert registry.detect({"save-5": [path.name for path in step.iterdir()]}).name == "acme"
    assert main(["verify", str(step)]) == 4
    assert "optim shards of rank 1 of 2 are missing" in capsys.readouterr().out
    (step / "optim-1-of-2.pt").write_bytes(b"opaque")
    os.utime(step / "DONE")
    assert main(["verify", str(step)]) == 0
    assert acme.resume_args("/d/save-5") == ["--resume=/d/save-5"]
    (step / "DONE").unlink()
    assert [problem.path for problem in acme.missing({path.name: 1 for path in step.iterdir()})] == ["DONE"]
