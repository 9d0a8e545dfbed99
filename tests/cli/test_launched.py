"""How many nodes pull together, in which attempt: from recorded environments of launchers."""

from __future__ import annotations

import pytest

from ckptsync.actions.launched import ALONE, Launch, launch_of
from ckptsync.config import parse
from ckptsync.errors import UsageError

# as `srun --ntasks-per-node=1 env` gave it on the second of four nodes, after one requeue
SLURM = {
    "SLURM_JOB_ID": "48213",
    "SLURM_JOBID": "48213",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_NNODES": "4",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_NODELIST": "gpu[07-10]",
    "SLURMD_NODENAME": "gpu08",
}
# as in an init container of an Indexed Job whose template passes the labels on
INDEXED = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "JOB_COMPLETION_INDEX": "2",
    "HOSTNAME": "train-2",
    "CKPTSYNC_ATTEMPT": "0f1c6a52-7f0e-4c39-9f5f-0b3b8f2a1d11",
    "CKPTSYNC_NODES": "4",
}
# as in a process that torchrun started: too late for a pull, and no id of the start but its own
TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "none",
    "MASTER_ADDR": "node-0",
}


@pytest.fixture
def launch(tmp_path):
    def find(env, *, settings="", nodes=None, attempt=None, embedded=False):
        text = f'[run]\noutput_dir = "{tmp_path}"\n{settings}'
        config = parse(text.encode(), str(tmp_path / "c.toml"), env)
        return launch_of(config, env, nodes=nodes, attempt=attempt, embedded=embedded), config.node.name

    return find


@pytest.mark.parametrize(
    ("env", "found", "name"),
    [
        (SLURM, Launch(4, "slurm-48213-1"), "gpu08"),
        ({k: v for k, v in SLURM.items() if k != "SLURM_RESTART_COUNT"}, Launch(4, "slurm-48213-0"), "gpu08"),
        (INDEXED, Launch(4, "0f1c6a52-7f0e-4c39-9f5f-0b3b8f2a1d11"), "index-2"),
        ({**INDEXED, "NODE_NAME": "worker-9"}, Launch(4, INDEXED["CKPTSYNC_ATTEMPT"]), "worker-9"),
        ({"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURMD_NODENAME": "a"}, ALONE, "a"),
    ],
)
def test_what_a_launcher_says(launch, env, found, name):
    assert launch(env) == (found, name)


@pytest.mark.parametrize(
    ("env", "settings", "why"),
    [
        (TORCHRUN, "[pull]\nnodes = 4\n", "torchrun and Ray do so only in what they start"),
        ({}, "[node]\ncount = 2\n", "need one --attempt ID"),
        ({k: v for k, v in INDEXED.items() if k != "CKPTSYNC_ATTEMPT"}, "", "batch.kubernetes.io/controller-uid"),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "CKPTSYNC_NODES": "2"}, "", "by the downward API"),
    ],
)
def test_several_nodes_need_an_id(launch, env, settings, why):
    with pytest.raises(UsageError) as caught:
        launch(env, settings=settings)
    assert why in str(caught.value)
    assert "--attempt" in str(caught.value)
    assert launch(env, settings=settings, nodes=1)[0] == ALONE


def test_the_command_line_goes_before_everything(launch):
    assert launch(SLURM, nodes=2)[0] == Launch(2, "slurm-48213-1")
    assert launch(SLURM, attempt="mine")[0] == Launch(4, "mine")
    assert launch({}, nodes=3, attempt="mine")[0] == Launch(3, "mine")
    assert launch(SLURM, settings="[pull]\nnodes = 3\n")[0] == Launch(3, "slurm-48213-1")


def test_one_node_with_an_id_takes_part_in_an_attempt_of_its_own(launch):
    assert launch({}, attempt="mine")[0] == Launch(1, "mine")
    assert launch({})[0] == ALONE


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 129])
def test_an_id_has_to_be_a_name(launch, name):
    with pytest.raises(UsageError):
        launch({}, nodes=2, attempt=name)


def test_several_nodes_need_a_store_that_they_share(launch):
    with pytest.raises(UsageError, match="from a store of this machine alone"):
        launch({}, nodes=2, attempt="mine", embedded=True)
    assert launch({}, attempt="mine", embedded=True)[0] == Launch(1, "mine")


@pytest.mark.parametrize("count", ["0", "-1", "four", "4.0", "9" * 9])
def test_a_number_of_nodes_is_a_number(launch, count):
    with pytest.raises(UsageError, match="CKPTSYNC_NODES"):
        launch({"CKPTSYNC_NODES": count, "CKPTSYNC_ATTEMPT": "a"})
