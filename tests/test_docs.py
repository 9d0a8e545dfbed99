"""The documentation says what is so: its commands, its settings, its links, and its example of a layout."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest
from config_keys import tables
from pages import PAGES, ROOT, blocks

import ckptsync
from ckptsync.actions.launched import Launch, launch_of
from ckptsync.cli.main import main
from ckptsync.config import Config, load
from ckptsync.layouts import registry

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
