"""`ckptsync preflight`: every installed check, here and on other nodes, in bounded time, whatever is not there."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ckptsync.actions.launched import Launch
from ckptsync.actions.preflight import PreflightOptions, preflight
from ckptsync.app import open_node
from ckptsync.cli.main import main
from ckptsync.cli.preflight import _show
from ckptsync.config import load
from ckptsync.errors import ConflictError
from ckptsync.resume import registry
from ckptsync.resume.outcome import Report, failed, passed, skipped, warned
from ckptsync.testing.checkpoints import age, layered_step, verl_step

TRACKER = "latest_checkpointed_iteration.txt"
MACHINE = 'skip = ["gpu", "ports"]'
"""What depends on the machine that the tests run on."""


class Home:
    def __init__(self, root, name="n0", store=""):
        self.out, self.name = root / name / "out", name
        self.out.mkdir(parents=True)
        self.file = root / name / "c.toml"
        self.store = store
        self.write(MACHINE)

    def write(self, preflight, more=""):
        store = f'[upload]\nstore = "{self.store}"\n' if self.store else ""
        self.file.write_text(
            f'[run]\nname = "r"\noutput_dir = "{self.out}"\nstate_dir = "{self.out.parent}/state"\n'
            f'[node]\nname = "{self.name}"\n{store}[preflight]\n{preflight}\n{more}'
        )

    def run(self, *arguments):
        return main(["preflight", "--config", str(self.file), *arguments])

    def node(self):
        return open_node(load(str(self.file), {}))


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    age(verl_step(home.out, 20, world=2), 100)
    verl_step(home.out, 40, world=2)
    return home


def statuses(text):
    return {check["name"]: check["status"] for check in json.loads(text)["checks"]}


def test_json_has_every_installed_check_and_the_exit_code_says_whether_one_failed(home, capsys):
    assert home.run("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["elsewhere"]) == (True, {})
    assert [check["name"] for check in document["checks"]] == list(registry.names())
    for check in document["checks"]:
        assert check.keys() == {"name", "status", "message", "remedy"}
        assert check["remedy"] or check["status"] in ("pass", "warn")
    (home.out / TRACKER).unlink()
    assert home.run("--json") == 9
    assert statuses(capsys.readouterr().out)["tracker"] == "fail"


def test_lines_for_logs_say_result_name_and_message_and_below_it_what_to_do(home, capsys):
    (home.out / TRACKER).unlink()
    assert home.run() == 9
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("fail  tracker: latest_checkpointed_iteration.txt is missing")
    assert lines[1].startswith("      -> `ckptsync preflight --fix` points it at step 40")
    assert lines[-1].startswith("this start would not continue the run: tracker failed; ")


def said_of(*checks, elsewhere=()):
    """The lines for a log of what was found, without the last."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        _show(Report(checks, elsewhere), json=False)
    return out.getvalue().splitlines()[:-1]


def test_failures_are_told_first_then_warnings_skips_and_passes_each_by_name():
    checks = [("d", passed("")), ("f", skipped("", "x")), ("e", warned("")), ("c", failed("", "x")), ("b", passed(""))]
    lines = said_of(*checks, ("a", failed("", "y")), elsewhere=[("n1", ("z", "y"))])
    assert [line.rstrip(": ") for line in lines if not line.startswith(" ")] == [
        "fail  a", "fail  c", "fail  on node n1: y, z", "warn  e", "skip  f", "pass  b", "pass  d",
    ]  # fmt: skip


def test_what_is_to_be_done_for_several_checks_is_told_once_and_names_them():
    a, c = (failed("bad", "pull") for _ in range(2))
    lines = said_of(("a", a), ("b", failed("worse", "mend it")), ("c", c), ("d", skipped("open", "pull")))
    assert lines == [
        "fail  a: bad",
        "fail  b: worse",
        "      -> mend it",
        "fail  c: bad",
        "      -> a, c: pull",
        "skip  d: open",
        "      -> pull",
    ]


def test_on_a_terminal_no_name_is_cut_off(home):
    name = "actor_rollout_ref.model.enable_gradient_checkpointing"
    code = (
        "from ckptsync.cli.preflight import _show; from ckptsync.resume.outcome import *\n"
        f"_show(Report((('model_options', failed('{name}', 'add {name}=True')),)), json=False)"
    )
    ours, theirs = os.openpty()
    environ = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", code], stdout=theirs, env=environ, check=True)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert name in re.sub(r"\s", "", shown)
    assert shown.count(name[:20]) == 2


def test_the_trainers_words_come_after_two_dashes(home, capsys):
    words = ["python3", "-m", "trainer", "trainer.resume_mode=disable", "--flag", "-x"]
    assert home.run("--json", "--", *words) == 9
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert "trainer.resume_mode=disable" in checks["tracker"]["message"]


def test_who_forgets_the_dashes_before_the_trainers_options_is_told(home, capsys):
    assert home.run("python3", "train.py", "--lr", "3") == 2
    assert "no such option: --lr" in (line := capsys.readouterr().err)
    assert "(the trainer's command stands after --; see `ckptsync preflight --help`)" in line
    assert main(["steps", "--lr"]) == 2
    assert "after --" not in capsys.readouterr().err


def test_fix_repairs_and_the_other_checks_look_at_what_is_repaired(home, capsys):
    (home.out / TRACKER).write_text("60")
    assert home.run("--json") == 9
    assert statuses(capsys.readouterr().out)["integrity"] == "skip"
    assert home.run("--json", "--fix") == 0
    done = capsys.readouterr()
    found = statuses(done.out)
    assert (found["tracker"], found["integrity"], found["rng"]) == ("pass", "pass", "pass")
    assert done.err == f"{home.out / TRACKER} is written: 40\n"
    assert (home.out / TRACKER).read_text() == "40"


def test_fix_deletes_stale_engine_state_of_the_step(tmp_path, capsys):
    home = Home(tmp_path)
    step = layered_step(home.out, 40)
    told = ["--", f"trainer.resume_from_checkpoint={step}"]
    assert home.run(*told) == 9
    assert home.run("--fix", *told) == 0
    assert f"{step}/rollout is deleted" in capsys.readouterr().err
    assert home.run(*told) == 0


def test_checks_that_are_switched_off_are_listed_as_skipped(home, capsys):
    (home.out / TRACKER).unlink()
    home.write('skip = ["gpu", "ports", "tracker"]')
    assert home.run("--json") == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert (checks["tracker"]["status"], "switched off" in checks["tracker"]["message"]) == ("skip", True)
    home.write('skip = ["trackr"]')
    assert home.run() == 3
    assert "unknown check" in capsys.readouterr().err


def test_a_first_start_passes(tmp_path, capsys):
    home = Home(tmp_path)
    assert home.run("--json") == 0
    assert statuses(capsys.readouterr().out)["tracker"] == "skip"
    home.out.rmdir()
    assert home.run("--json") == 0


def _a_file(out):
    out.rename(out.parent / "elsewhere")
    out.write_text("")


def _in_a_circle(out):
    out.rename(out.parent / "elsewhere")
    out.symlink_to(out)


def _not_mounted(out):
    out.rename(out.parent / "elsewhere")
    out.symlink_to(out.parent / "volume")


@pytest.mark.parametrize("broken", [_a_file, _in_a_circle, _not_mounted])
@pytest.mark.parametrize("command", [["preflight"], ["exec", "--", "true"]])
def test_an_output_dir_that_cannot_be_used_is_no_first_start(home, capsys, broken, command):
    broken(home.out)
    assert main([command[0], "--config", str(home.file), *command[1:]]) == 3
    assert str(home.out) in capsys.readouterr().err


WITHOUT_PRIVILEGES = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, off by PR_CAPBSET_DROP: root, and modes count
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_an_output_dir_that_is_not_ours_to_read_is_no_first_start(home):
    inner = home.out / "checkpoints"
    home.out.rename(home.out.parent / "steps")
    home.out.mkdir()
    (home.out.parent / "steps").rename(inner)
    inner.chmod(0)

    def run(*words):
        command = [sys.executable, "-c", WITHOUT_PRIVILEGES, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    try:
        if run("-c", "import os, sys; os.listdir(sys.argv[1])", inner).returncode == 0:
            pytest.skip("this environment keeps root's privileges")
        done = run("-m", "ckptsync", "preflight", "--config", home.file)
    finally:
        inner.chmod(0o755)
    assert done.returncode == 3
    assert str(inner) in done.stderr


@pytest.mark.parametrize("command", [["preflight"], ["exec", "--", "true"]])
def test_a_working_directory_that_was_deleted_is_said_to_be_one(home, capsys, monkeypatch, command):
    (home.out.parent / "gone").mkdir()
    monkeypatch.chdir(home.out.parent / "gone")
    (home.out.parent / "gone").rmdir()
    assert main([command[0], "--config", str(home.file), *command[1:]]) == 2
    assert "working directory" in capsys.readouterr().err


def test_a_fifo_in_the_place_of_the_tracker_is_not_waited_for(home, capsys):
    (home.out / TRACKER).unlink()
    os.mkfifo(home.out / TRACKER)
    assert home.run() == 9
    assert f"{TRACKER} cannot be read" in capsys.readouterr().out
    assert home.run("--fix") == 0


@pytest.mark.parametrize("level", ["structure", "full"])
def test_levels(home, capsys, level):
    file = home.out / "global_step_40/actor/model_world_size_2_rank_0.pt"
    data = bytearray(file.read_bytes())
    data[1500] ^= 1
    file.write_bytes(data)
    assert home.run("--level", level) == (9 if level == "full" else 0)
    assert home.run("--level", "all") == 2


def test_an_unreachable_store_is_what_the_checks_say(home, capsys, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    home.store = 's3://bucket/p"\nregion = "us-east-1"\nendpoint = "http://127.0.0.1:9'
    home.write(MACHINE)
    assert home.run("--json") == 9
    report = json.loads(capsys.readouterr().out)
    found = {check["name"]: check["status"] for check in report["checks"]}
    assert [name for name, status in found.items() if status == "fail"] == ["store"]
    assert (found["tracker"], found["integrity"], found["clock"]) == ("warn", "pass", "skip")
    said = next(check["message"] for check in report["checks"] if check["name"] == "tracker")
    assert "leads to step 40, the newest whole step on this disk" in said
    assert "the store does not tell" in said


def test_without_a_step_and_without_the_store_it_does_not_say_that_there_is_none(home, capsys, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    home.store = 's3://bucket/p"\nregion = "us-east-1"\nendpoint = "http://127.0.0.1:9'
    shutil.rmtree(home.out)
    home.out.mkdir()
    home.write(MACHINE)
    assert home.run("--json") == 9
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["tracker"]["status"] == "skip"
    assert checks["tracker"]["message"] == "no step is known here, and the store does not tell"


def test_without_gpu_network_record_or_interpreter_it_takes_less_than_three_seconds_of_work(home):
    home.write("")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", "import sys; from ckptsync.cli.main import main; sys.exit(main())"]
    environ = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    command += ["preflight", "--json", "--config", str(home.file)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (0, 9), done.stderr
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 3
    skipped = [check for check in json.loads(done.stdout)["checks"] if check["status"] == "skip"]
    assert {"versions", "algorithm"} <= {check["name"] for check in skipped}
    assert all(check["remedy"] for check in skipped)


# -- checks of others


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a check, as a package with an entry point."""

    def install(name, source):
        site = tmp_path / "site"
        info = site / f"{name}_checks-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-checks\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[ckptsync.checks]\n{name} = {name}_checks:check\n")
        (site / f"{name}_checks.py").write_text(source)
        monkeypatch.syspath_prepend(str(site))

    return install


def test_a_check_of_somebody_else_runs_and_its_faults_are_its_own(home, installed, capsys):
    installed(
        "licence", "from ckptsync.resume.outcome import passed\ncheck = lambda c: passed(f'step {c.resumed.step}')"
    )
    installed("crash", "def check(context):\n    raise RuntimeError('of its own')")
    assert home.run("--json") == 9
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert (checks["licence"]["status"], checks["licence"]["message"]) == ("pass", "step 40")
    assert (checks["crash"]["status"], "of its own" in checks["crash"]["message"]) == ("fail", True)
    assert checks["tracker"]["status"] == "pass"


def test_the_check_in_the_documentation_works(home, installed, capsys):
    text = (Path(__file__).parents[2] / "docs/preflight.md").read_text()
    source = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    installed("acme", source + "\n\ncheck = licence\n")
    for words, status in (((), "skip"), (("acme.licence=expired",), "fail"), (("acme.licence=valid",), "pass")):
        home.run("--json", "--", *words)
        assert statuses(capsys.readouterr().out)["acme"] == status


def test_a_check_that_does_not_end_is_given_up(home, installed, capsys, monkeypatch):
    monkeypatch.setattr("ckptsync.actions.preflight._CHECK_S", 2.0)
    installed("hang", "import threading\ncheck = lambda c: threading.Event().wait(60)")
    began = time.monotonic()
    assert home.run("--json") == 9
    assert time.monotonic() - began < 30
    found = statuses(capsys.readouterr().out)
    assert [name for name, status in found.items() if status == "fail"] == ["hang"]


def test_a_store_that_hangs_ends_it_with_a_line_that_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ckptsync.actions.preflight._CHECK_S", 2.0)
    home = Home(tmp_path, store=f"file://{tmp_path}/store")
    verl_step(home.out, 40, world=2)
    (tmp_path / "store/r").mkdir(parents=True)
    hanging = tmp_path / "store/r/run.json"
    os.mkfifo(hanging)  # who opens it to read waits, as on a file server that is gone
    try:
        assert home.run() == 6
    finally:
        hanging.rename(tmp_path / "fifo")
        os.close(os.open(tmp_path / "fifo", os.O_RDWR))
    assert "have not answered within 2 s" in capsys.readouterr().err


def test_a_check_that_cannot_be_loaded_is_an_error(home, installed, capsys):
    installed("bad", "import nothing_that_exists")
    assert home.run() == 3
    assert "cannot load a check" in capsys.readouterr().err


# -- several nodes


@pytest.fixture
def pair(tmp_path):
    store = f"file://{tmp_path}/store"
    homes = [Home(tmp_path, name, store) for name in ("n0", "n1")]
    for home in homes:
        verl_step(home.out, 40, world=2)
    return homes


def together(homes, attempt="a-1", timeout_s=30.0):
    reports = {}

    def run(home):
        options = PreflightOptions(launch=Launch(len(homes), attempt), timeout_s=timeout_s)
        try:
            reports[home.name] = preflight(home.node(), options, say=lambda _: None)
        except ConflictError as error:
            reports[home.name] = error

    threads = [threading.Thread(target=run, args=(home,)) for home in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return reports


def test_one_nodes_failure_is_everybodys_and_is_named(pair):
    reports = together(pair)
    assert {name: report.ok for name, report in reports.items()} == {"n0": True, "n1": True}
    (pair[1].out / TRACKER).unlink()
    reports = together(pair)
    assert {name: report.ok for name, report in reports.items()} == {"n0": False, "n1": False}
    assert reports["n0"].to_json()["elsewhere"] == {"n1": ["tracker"]}
    assert (reports["n0"].failures, reports["n1"].failures, reports["n1"].elsewhere) == ((), ("tracker",), ())


def test_a_node_that_does_not_come_is_a_conflict_and_what_was_found_here_is_shown(pair, capsys):
    assert pair[0].run("--json", "--nodes", "2", "--attempt", "a-1", "--timeout", "1s") == 7
    done = capsys.readouterr()
    assert statuses(done.out)["tracker"] == "pass"
    assert "1 of 2 nodes are here, 1 absent" in done.err
    assert done.err.splitlines()[0].startswith("waiting: ")


def test_several_nodes_need_an_attempt_and_a_store_that_they_share(pair, tmp_path):
    assert pair[0].run("--nodes", "2") == 2
    assert Home(tmp_path, "alone").run("--nodes", "2", "--attempt", "a-1") == 2
