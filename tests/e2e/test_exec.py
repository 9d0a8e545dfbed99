"""`exec`: real trainers, from the step that they resume from to the last push."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import exec_trainer
import pytest
import train_logs
from hydra_app import HydraApp
from waiting import alive, until

from ckptsync.disk.lock import RunLock
from ckptsync.resume.running.guard import descendants
from ckptsync.testing.checkpoints import age, layered_step, verl_step


class Job:
    """`exec` with the trainer of the tests."""

    def __init__(self, node, log):
        self.node, self.log = node, log

    def command(self, plans, *arguments):
        return [sys.executable, exec_trainer.__file__, self.log, self.node.ckpt, plans, *arguments]

    def start(self, plans, *options, arguments=(), **more):
        return self.node.start("exec", *options, "--", *self.command(plans, *arguments), **more)

    def run(self, plans, *options, **more):
        return self.start(plans, *options, **more).wait()

    def lines(self):
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def said(self, name):
        return [line[name] for line in self.lines() if name in line]

    @property
    def args(self):
        """The arguments of each start."""
        return self.said("args")

    def ready(self):
        until(lambda: self.said("ready"), "the trainer")


@pytest.fixture
def job(node, tmp_path):
    return Job(node, tmp_path / "log")


@pytest.fixture
def job_of(tmp_path):
    return lambda node: Job(node, tmp_path / f"log-{node.name}")


def resume_args(node, step):
    return ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={node.ckpt}/global_step_{step}"]


# -- from where


def test_a_job_begins_from_nothing_pushes_what_it_saved_and_goes_on_from_it(job):
    first = job.run("save:20", arguments=["a=b"])
    assert (first.code, first.out) == (0, "")
    assert "nothing to resume from" in first.err
    assert len(job.node.commits(20)) == 1
    second = job.run("save:30 exit:7", arguments=["a=b", "trainer.resume_mode=disable"])
    assert second.code == 7
    assert job.args == [["a=b"], ["a=b", *resume_args(job.node, 20)]]
    assert len(job.node.commits(30)) == 1


def test_a_pull_brings_the_step_under_the_name_that_the_trainer_knows(make_node, job_of):
    writer = make_node("n0")
    verl_step(writer.ckpt, 20)
    assert writer.run("push").code == 0
    reader = make_node("n1", store=writer.store)
    reader.config.write_text(reader.config.read_text().replace("[run]", '[run]\ntrainer_dir = "/in/the/container"'))
    job = job_of(reader)
    assert job.run("exit:0").code == 0
    assert job.run("exit:0", "--pull").code == 0
    path = "/in/the/container/global_step_20"
    assert job.args == [[], ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={path}"]]
    assert reader.tracker.read_text() == "20"


def test_the_layered_trainer_does_not_get_the_engines_state_back(job):
    layered_step(job.node.ckpt, 40, rollout=False)
    assert job.run("exit:0", arguments=["--rollout-state-restore", "x=1"]).code == 0
    path = f"{job.node.ckpt}/step_40"
    assert job.args == [["--no-rollout-state-restore", "x=1", f"trainer.resume_from_checkpoint={path}"]]


def test_a_layout_without_resume_arguments_adds_none_and_says_so(job):
    step = job.node.ckpt / "checkpoint-5"
    step.mkdir()
    (step / "model.pt").write_bytes(b"opaque")
    done = job.run("exit:0", arguments=["a=b"])
    assert done.code == 0
    assert "for layout plain no resume arguments are known" in done.err
    assert job.args == [["a=b"]]


def test_a_strategy_selects_among_the_steps_that_are_here(job):
    for step in (20, 30, 50):
        verl_step(job.node.ckpt, step)
    assert job.run("exit:0", "--select", "multiple-of 20").code == 0
    assert job.run("exit:0", "--step", 30).code == 0
    assert job.run("exit:0", "--max-step", 40).code == 0
    assert job.run("exit:0", "--step", 40).code == 4
    assert job.args == [resume_args(job.node, step) for step in (20, 30, 30)]


def test_a_step_that_lies_here_alone_is_not_lost_where_a_committed_one_is_asked_for(job):
    verl_step(job.node.ckpt, 20)
    done = job.run("exit:0", "--select", "newest-committed")
    assert done.code == 9
    assert "step 20 is whole on this disk" in done.err
    assert not job.lines()


def test_a_broken_step_is_not_resumed_from(job):
    age(verl_step(job.node.ckpt, 20), 100)
    broken = next(verl_step(job.node.ckpt, 30).glob("actor/model_*"))
    broken.write_bytes(broken.read_bytes()[:-100])
    done = job.run("exit:0")
    assert done.code == 0
    assert "step 30 here is not taken: broken: actor/model_" in done.err
    assert job.args == [resume_args(job.node, 20)]


def test_who_begins_from_the_start_beside_a_broken_step_is_told(job):
    broken = next(verl_step(job.node.ckpt, 30).glob("actor/model_*"))
    broken.write_bytes(broken.read_bytes()[:-100])
    done = job.run("exit:0")
    assert (done.code, job.args) == (0, [[]])
    assert "step 30 here is not taken: " in done.err


def test_what_is_marked_as_bad_is_not_resumed_from_as_long_as_the_store_says_so(job):
    for step in (20, 40):
        verl_step(job.node.ckpt, step)
        job.node.once()
    job.node.pull("--avoid", "40")
    verl_step(job.node.ckpt, 40)  # the same bytes again
    assert job.run("exit:0").code == 0
    assert job.args == [resume_args(job.node, 20)]


def test_a_script_of_a_shell_says_where_the_arguments_go(job, tmp_path):
    verl_step(job.node.ckpt, 20)
    trainer = " ".join(map(str, job.command("exit:0")))
    refused = job.node.run("exec", "--", "sh", "-c", trainer)
    assert (refused.code, job.args) == (2, [])
    assert "{resume}" in refused.line
    assert job.node.run("exec", "--", "sh", "-c", f"{trainer} {{resume}} last").code == 0
    assert job.args == [[*resume_args(job.node, 20), "last"]]


def test_what_is_not_the_trainer_gets_no_arguments_and_is_not_recorded(job):
    verl_step(job.node.ckpt, 20)
    assert job.run("exit:4", "--no-args", "--restart", "1", arguments=["{resume}"]).code == 4
    assert job.args == [["{resume}"], ["{resume}"]]
    assert records(job.node) == []


def test_printing_runs_nothing(job):
    verl_step(job.node.ckpt, 20)
    command = [*map(str, job.command("exit:0", "a b")), *resume_args(job.node, 20)]
    printed = job.start("exit:0", "--print-command", "--json", arguments=["a b"]).wait()
    assert json.loads(printed.out) == {
        "step": 20,
        "resume_args": resume_args(job.node, 20),
        "command": command,
        "cwd": os.getcwd(),
    }
    assert (
        job.run("exit:0", "--print-command", arguments=["a b"])
        .out.rstrip()
        .endswith(" ".join(["'a b'", *resume_args(job.node, 20)]))
    )
    assert job.node.run("exec", "--print-args").out.split() == resume_args(job.node, 20)
    assert job.args == []


def test_printing_after_a_pull_restores_nothing(make_node):
    writer = make_node("n0")
    verl_step(writer.ckpt, 20)
    assert writer.run("push").code == 0
    reader = make_node("n1", store=writer.store)
    assert reader.run("exec", "--pull", "--print-args").out.split() == resume_args(reader, 20)
    assert list(reader.ckpt.iterdir()) == []


# -- one at a time


@pytest.mark.parametrize("options", [("--pull", "--preflight"), ("--probe",)])
def test_a_second_job_of_a_run_on_a_node_is_refused_before_it_does_anything(job, options):
    first = job.start("save:20 wait")
    job.ready()
    before = sorted(job.node.state.rglob("*"))
    refused = job.run("exit:0", *options)
    assert (refused.code, len(job.args), sorted(job.node.state.rglob("*"))) == (7, 1, before)
    assert f"process {first.pid}, since 20" in refused.line
    assert f"`kill {first.pid}`" in refused.line
    first.send(signal.SIGTERM)
    assert first.wait().code == -15


def test_a_job_that_was_killed_leaves_the_way_free(job):
    first = job.start("wait;exit:0")
    job.ready()
    first.kill()
    assert job.run("exit:0").code == 0


def test_printing_commands_for_others_and_another_run_go_on_beside_a_job(job, job_of, make_node):
    first = job.start("save:20 wait")
    job.ready()
    assert job.run("exit:0", "--print-args").code == 0
    assert job.run("exit:0", "--no-args").code == 0
    other = make_node("n1", store=job.node.store)
    other.config.write_text(other.config.read_text().replace('name = "r"', 'name = "other"'))
    assert job_of(other).run("exit:0").code == 0
    first.send(signal.SIGTERM)
    first.wait()


def test_two_nodes_that_share_a_home_have_a_job_each(job, job_of, make_node):
    first = job.start("wait")
    job.ready()
    other = make_node("n1", store=job.node.store)
    other.config.write_text(other.config.read_text().replace(str(other.state), str(job.node.state)))
    assert job_of(other).run("exit:0").code == 0
    first.send(signal.SIGTERM)
    first.wait()


# -- what is passed through


@pytest.mark.parametrize(("plan", "code"), [("exit:1", 1), ("exit:255", 255), ("die:9", -9), ("die:11", -11)])
def test_the_end_is_the_commands(job, plan, code):
    assert job.run(plan).code == code


@pytest.mark.parametrize(("word", "code"), [("/nonexistent", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_be_started_is_one_line(node, word, code):
    done = node.run("exec", "--", word)
    assert done.code == code
    assert "cannot start the command" in done.line


def test_stdin_and_environment_are_the_users(job, tmp_path):
    (tmp_path / "input").write_text("from the user")
    job.node.environ = {"MINE": "yes"}
    assert job.run("stdin", stdin=str(tmp_path / "input")).code == 0
    assert job.said("stdin") == ["from the user"]
    assert job.said("env")[0]["MINE"] == "yes"


@pytest.mark.parametrize("given", [{}, {"OPENBLAS_NUM_THREADS": "7"}])
def test_what_ckptsync_sets_for_itself_is_not_for_the_command(job, given):
    """A process of its own: what runs in this one before may have set it."""
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PYTHONPATH": os.pathsep.join(sys.path), **given}
    exec_ = [sys.executable, "-m", "ckptsync", "exec", "--config", job.node.config, "--", *job.command("exit:6")]
    assert subprocess.run(list(map(str, exec_)), env=env, check=False).returncode == 6
    found = job.said("env")[0]
    assert {name: found[name] for name in found if name != "CKPTSYNC_SOCKET"} == env


# -- signals


def test_sigterm_while_it_trains_is_passed_on_and_what_it_saves_then_is_pushed(job):
    run = job.start("save:20 term:30 wait")
    job.ready()
    run.send(signal.SIGTERM)
    done = run.wait()
    assert (done.code, job.said("signal")) == (5, ["TERM"])
    assert len(job.node.commits(30)) == 1, done.err


def test_sigterm_ends_a_trainer_that_knows_nothing_of_it_and_its_step_is_pushed(job):
    run = job.start("save:20 wait")
    job.ready()
    run.send(signal.SIGTERM)
    assert run.wait().code == -15
    assert len(job.node.commits(20)) == 1


def test_a_shell_around_the_trainer_does_not_keep_the_signal(job):
    trainer = " ".join(map(str, job.command("save:20 term:30 wait".replace(" ", "_"))))
    trainer = trainer.replace("save:20_term:30_wait", "'save:20 term:30 wait'")
    run = job.node.start("exec", "--", "sh", "-c", f"{trainer}; true")
    job.ready()
    run.send(signal.SIGTERM)
    assert run.wait().code == -15
    assert job.said("signal") == ["TERM"]
    assert len(job.node.commits(30)) == 1


@pytest.mark.parametrize("options", [("--pull",), ("--preflight",), ("--pull", "--restart", "3", "--daemon")])
def test_sigterm_before_the_start_ends_it_cleanly(make_node, job_of, options):
    """It waits for another node."""
    verl_step((job := job_of(make_node("n0", nodes=2))).node.ckpt, 20)
    run = job.start("exit:0", *options, "--attempt", "a", "--timeout", "10m")
    until(lambda: "waiting: " in run.err.read_text(), "the wait")
    run.send(signal.SIGTERM)
    done = run.wait()
    assert (done.code, job.args) == (143, [])
    assert done.line == "ckptsync: stopped by SIGTERM: nothing was started"
    assert job.node.leftovers() == []


@pytest.mark.parametrize("options", [(), ("--pull",)])
def test_sigterm_while_it_waits_for_another_command_ends_it_cleanly(job, options):
    verl_step(job.node.ckpt, 20)
    job.node.once()
    with RunLock(str(job.node.state / "lock")):
        run = job.start("exit:0", *options)
        until(lambda: "waiting for process" in run.err.read_text(), "the wait")
        run.send(signal.SIGTERM)
        done = run.wait()
    assert (done.code, job.args) == (143, [])
    assert done.line == "ckptsync: stopped by SIGTERM: nothing was started"


def test_sigterm_between_two_starts_ends_the_job_after_a_last_push(job):
    """The second start waits for another command."""
    run = job.start("save:20 wait;exit:0", "--restart", "3")
    job.ready()
    with RunLock(str(job.node.state / "lock")):
        os.kill(job.said("pid")[0], signal.SIGKILL)
        until(lambda: "waiting for process" in run.err.read_text(), "the wait")
        run.send(signal.SIGTERM)
        until(lambda: "stopped by SIGTERM: not started again" in run.err.read_text())
    done = run.wait()
    assert (done.code, len(job.args)) == (143, 1)
    assert len(job.node.commits(20)) == 1


SLOW = 'bandwidth = "20KB/s"\n'


def slow(node):
    """Its uploads take a minute."""
    node.config.write_text(node.config.read_text().replace("[daemon]", f"{SLOW}[daemon]"))
    return node


def pushing(run, node):
    """Wait until the last push has begun: its part is there."""
    until(lambda: list((node.store / "r/steps").glob("*/parts/*")), "the last push")


def test_a_second_sigterm_ends_the_last_push(job):
    slow(job.node)
    run = job.start("big:20 term:30 wait")
    job.ready()
    run.send(signal.SIGTERM)
    pushing(run, job.node)
    until(lambda: not alive(job.said("pid")[0]))
    time.sleep(1.1)  # so soon after the first it would be the same request
    run.send(signal.SIGTERM)
    done = run.wait()
    assert done.code == 5
    assert "the last push was stopped: SIGTERM came again" in done.err
    assert job.node.commits(30) == []


def test_sigterm_in_the_last_push_of_a_job_that_ended_by_itself_lets_it_go_on(job):
    job.node.config.write_text(job.node.config.read_text().replace("[daemon]", 'bandwidth = "200KB/s"\n[daemon]'))
    run = job.start("big:20 exit:3")
    pushing(run, job.node)
    run.send(signal.SIGTERM)
    done = run.wait()
    assert done.code == 3
    assert len(job.node.commits(20)) == 1, done.err


def test_the_deadline_ends_the_last_push(job):
    slow(job.node)
    done = job.run("big:20 exit:3", "--deadline", "500ms")
    assert done.code == 3
    assert "--deadline, 0.5 s, is over" in done.err
    assert job.node.commits(20) == []


def test_exec_that_is_killed_leaves_nothing(job):
    run = job.start("orphan wait")
    job.ready()
    everybody = [*descendants(run.pid), *job.said("orphan")]
    assert len(everybody) >= 3
    run.kill()
    until(lambda: not any(map(alive, everybody)), "the end of all")


# -- the store


NOWHERE = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
QUICK = {"request_s": 1.0, "retry_s": 0.5}


def test_a_store_out_of_reach_does_not_keep_the_training(make_node, job_of):
    node = make_node("n0", environ={**NOWHERE, "AWS_REGION": "x", "AWS_EC2_METADATA_DISABLED": "true"})
    node.write_config(store="s3://nowhere/x")
    verl_step(node.ckpt, 20)
    job = job_of(node)
    done = job.run("exit:4", limits=QUICK)
    assert done.code == 4
    assert job.args == [resume_args(node, 20)]
    lines = done.err.splitlines()
    assert sum("this launch is not recorded yet" in line for line in lines) == 1
    assert sum("the last push failed" in line for line in lines) == 1
    refused = job.run("exit:4", "--pull", limits=QUICK)
    assert (refused.code, len(job.args)) == (6, 1)


def test_a_store_that_never_answers_keeps_neither_the_start_nor_the_end(make_node, job_of):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        node = make_node("n0", environ={**NOWHERE, "AWS_REGION": "x", "AWS_ENDPOINT_URL_S3": endpoint})
        node.write_config(store="s3://silent/x")
        verl_step(node.ckpt, 20)
        job = job_of(node)
        done = job.run("exit:4", "--deadline", "100ms")
    assert done.code == 4
    assert job.args == [resume_args(node, 20)]
    assert "the store has not answered within 3 s" in done.err
    assert "the last push was stopped: --deadline" in done.err


def records(node):
    found = [json.loads(path.read_bytes()) for path in (node.store / "r/attempts").rglob("record.json")]
    return sorted(found, key=lambda record: record["started_ns"])


def ends(node):
    return [json.loads(path.read_bytes())["exit_code"] for path in (node.store / "r/attempts").rglob("ended.json")]


def test_each_start_is_recorded_under_its_attempt(job):
    job.run("save:20 die:9", "--attempt", "a-1", arguments=["trainer.nnodes=2", "trainer.hf_token=hf_secret"])
    job.run("exit:0")
    first, second = records(job.node)
    assert (first["attempt"], first["resumed_step"]) == ("a-1", -1)
    assert second["attempt"].startswith("local-")
    assert (second["resumed_step"], second["resumed_commit"]) == (20, job.node.commits(20)[0].removesuffix(".json"))
    assert first["settings"]["trainer.nnodes"] == "2"
    assert "hf_secret" not in json.dumps(first)
    assert sorted(ends(job.node)) == [0, 137]


def test_again_runs_what_was_recorded(job):
    verl_step(job.node.ckpt, 20)
    assert job.run("exit:0", arguments=["trainer.nnodes=2", "a=b"]).code == 0
    assert job.node.run("exec", "--again", "--", "a=c").code == 0
    assert job.args[1] == ["trainer.nnodes=2", "a=c", *resume_args(job.node, 20)]


def test_again_says_what_hydra_took_from_files(node, tmp_path):
    app = HydraApp(tmp_path)
    node.environ = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1", "ROLLOUT_SEED": "7"}
    here = f"hydra.run.dir={tmp_path}/hydra"
    command = app.words("actor_rollout_ref.model.path=/m", "actor_rollout_ref.rollout.name=vllm", here)
    done = node.run("exec", "--", *command)
    assert (done.code, done.out) == (0, "1\n"), done.err
    printed = node.run("exec", "--again", "--print-command", "--json", "--", "trainer.nnodes=2")
    assert printed.code == 0, printed.err
    words = json.loads(printed.out)["command"]
    assert words[: len(command)] == list(command)
    assert set(words[len(command) :]) == {
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=8",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.rollout.n=1",
        "actor_rollout_ref.actor.strategy=fsdp",
        "algorithm.adv_estimator=gae",
        "algorithm.kl_ctrl.type=fixed",
        "algorithm.kl_ctrl.kl_coef=0.001",
    }
    again = node.run("exec", "--again", "--", "trainer.nnodes=2")
    assert (again.code, again.out) == (0, "2\n"), again.err


def test_again_keeps_the_place_in_a_script_and_asks_for_secrets(job):
    trainer = " ".join(map(str, job.command("exit:0")))
    assert job.node.run("exec", "--", "sh", "-c", f"{trainer} {{resume}} last").code == 0
    verl_step(job.node.ckpt, 20)
    assert job.node.run("exec", "--again").code == 0
    assert job.args == [["last"], [*resume_args(job.node, 20), "last"]]
    assert job.run("exit:0", arguments=["trainer.api_key=abc"]).code == 0
    refused = job.node.run("exec", "--again")
    assert (refused.code, len(job.args)) == (2, 3)
    assert "trainer.api_key=***" in refused.line
    assert job.node.run("exec", "--again", "--", "trainer.api_key=abc").code == 0
    assert job.args[3][0] == "trainer.api_key=abc"


def test_without_a_record_there_is_nothing_to_run_again(node):
    done = node.run("exec", "--again")
    assert done.code == 2
    assert "no launch of this node is recorded" in done.line


# -- checks


def test_a_check_that_fails_keeps_the_command_from_starting(job):
    verl_step(job.node.ckpt, 20)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with job.node.config.open("a") as file:
            file.write(f"[preflight]\nports = [{port}]\n")
        done = job.run("exit:0", "--preflight")
    assert (done.code, job.args) == (9, [])
    assert "fail ports: " in done.err
    assert str(port) in done.err


# -- again after a crash


def test_a_crash_is_followed_by_a_fresh_pull(job):
    done = job.run("save:20 exit:1;save:40 die:11;exit:0", "--restart", "5")
    assert done.code == 0
    assert job.args == [[], resume_args(job.node, 20), resume_args(job.node, 40)]
    assert len(records(job.node)) == 3


def test_as_often_as_it_was_told(job):
    done = job.run("exit:3", "--restart", "2")
    assert (done.code, len(job.args)) == (3, 3)


def test_a_step_that_does_not_load_twice_is_stepped_back_from_once(job):
    for step in (10, 20, 40):
        verl_step(job.node.ckpt, step)
        job.node.once()
    done = job.run("exit:1", "--restart", "9", "--pull")
    assert done.code == 1
    assert job.args == [resume_args(job.node, step) for step in (40, 40, 20, 20)]
    assert "step 40 has failed to load twice: one step back" in done.err
    assert "it is hardly the steps" in done.err


def test_a_step_is_stepped_back_from_that_no_store_has_seen(job):
    verl_step(job.node.ckpt, 20)
    job.node.once()
    verl_step(job.node.ckpt, 40)
    done = job.run("exit:1;exit:1;save:30 exit:1;exit:0", "--restart", "9")
    assert done.code == 0
    assert job.args == [resume_args(job.node, step) for step in (40, 40, 20, 30)]


def test_several_nodes_crash_and_agree_again_and_step_back_together(make_node, job_of):
    nodes = [make_node(name, nodes=2) for name in ("n0", "n1")]
    for step in (20, 40):
        for rank, node in enumerate(nodes):
            verl_step(node.ckpt, step, world=2, ranks=[rank], driver=rank == 0)
        for node in (*nodes, *nodes):
            assert node.run("push", "--step", step).code in {0, 4}
    jobs = [job_of(node) for node in nodes]
    options = ("--pull", "--restart", "5", "--attempt", "a", "--timeout", "10m")
    for run in [job.start("meet exit:1;meet exit:1;exit:0", *options) for job in jobs]:
        done = run.wait()
        assert done.code == 0, done.err
    assert [job.args for job in jobs] == [[resume_args(node, step) for step in (40, 40, 20)] for node in nodes]
    assert {record["attempt"] for record in records(nodes[0])} == {"a"}


def test_after_a_newer_save_a_restart_does_not_go_back_to_the_step_that_was_asked_for(job):
    for step in (20, 40):
        verl_step(job.node.ckpt, step)
        job.node.once()
    done = job.run("exit:1;save:30 exit:1;exit:0", "--pull", "--step", "20", "--restart", "5")
    assert done.code == 0
    assert job.args == [resume_args(job.node, step) for step in (20, 20, 30)]


def test_what_a_crashed_start_left_is_gone_before_the_next_one(job):
    done = job.run("orphan exit:1;exit:0", "--restart", "1")
    assert done.code == 0
    assert not any(map(alive, job.said("orphan")))


def test_a_signal_is_no_crash(job):
    run = job.start("wait", "--restart", "9")
    job.ready()
    run.send(signal.SIGTERM)
    assert run.wait().code == -15
    assert len(job.args) == 1


# -- a probe


def test_a_probe_is_one_step_and_nothing_else(job, tmp_path):
    verl_step(job.node.ckpt, 20)
    lines = [*train_logs.v1_start(20, str(job.node.ckpt)), *train_logs.steps(21, 21)]
    (tmp_path / "lines").write_text("".join(lines))
    trainer = [sys.executable, "-c", f"print(open({str(tmp_path / 'lines')!r}).read(), flush=True)"]
    good = job.node.run("exec", "--probe", "--", *trainer)
    assert (good.code, good.line) == (0, "ckptsync: the resume continues the run"), good.err
    bad = job.run("exit:1", "--probe")
    assert (bad.code, bad.line) == (9, "ckptsync: the resume does not continue the run")
    assert "trainer.total_training_steps=21" in job.args[0]
    assert job.node.commits(20) == []
    assert not (job.node.store / "r/attempts").exists()


def test_a_probe_without_a_step_has_nothing_to_try(job):
    assert job.run("exit:0", "--probe").code == 5
    assert job.run("exit:0", "--probe", "--restart", "1").code == 2
    assert job.args == []
