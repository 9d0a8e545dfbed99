"""Commands beside the daemon: what one of them finds or does, the other learns of."""

from __future__ import annotations

import os
from dataclasses import replace

from ckptsync.actions.overview import look_once
from ckptsync.actions.pull import pull_step
from ckptsync.actions.push import push_step, settle_local
from ckptsync.actions.verify import verify_path
from ckptsync.actions.wait import wait_for
from ckptsync.app import open_node
from ckptsync.config import parse
from ckptsync.model.step import Level, LocalState
from ckptsync.sync.setup import DeepLimits
from ckptsync.testing.checkpoints import verl_step


def command(home):
    """A node as a command opens it, which trusts a step's quiet at once."""
    node = open_node(parse(home.config.read_bytes(), str(home.config), {}))
    node.recognise()
    node.local.setup = replace(node.local.setup, settle_s=0.0)
    return node


def corrupt(path):
    """A hole in the data, behind the back of size and structure; long ago, so that it is quiet."""
    with path.open("r+b") as file:
        file.seek(1024)
        file.write(bytes(512))
    os.utime(path, ns=(0, path.stat().st_mtime_ns - 60 * 10**9))


def test_a_push_by_hand_leaves_latest_and_the_daemons_memory_alone(make_home, drive):
    home = make_home('[upload]\nevery_steps = 1000\nstore = "memory://beside"')
    for step in (20, 40):
        verl_step(home.out, step)
    daemon = drive(home.daemon())
    assert home.latest == "global_step_40"
    push_step(command(home), 40, progress=lambda _: None)
    daemon.node.local.setup = replace(daemon.node.local.setup, settle_s=60.0)
    daemon.tick()
    assert [view.state for view in daemon.views] == [LocalState.VERIFIED] * 2
    assert home.latest == "global_step_40"


def test_wait_learns_that_the_daemon_has_found_a_step_broken(make_home, drive):
    home = make_home()
    made = verl_step(home.out, 20, n=4096)
    waiting = command(home)
    corrupt(made / "actor" / "model_world_size_1_rank_0.pt")
    assert wait_for(waiting, 20, committed=False, timeout_s=0.0).state != LocalState.BROKEN.value
    drive(home.daemon())
    seen = wait_for(waiting, 20, committed=False, timeout_s=0.0)
    assert (seen.ok, seen.state) == (False, LocalState.BROKEN.value)
    assert "CRC" in seen.message


def test_commands_count_shards_from_before_a_pull_as_another_saves(make_home, drive):
    """After a pull every file is here, and a re-save writes only this node's own: the rest is stale."""
    home = make_home()
    made = verl_step(home.out, 20, world=2)
    drive(home.daemon())
    with pull_step(command(home), step=None, max_step=None, dest=None, keep_newer=False, say=print) as planned:
        planned.execute(lambda _: None)
    now = (home.state / "pulled").stat().st_mtime_ns + 10**9
    for path in (made / "data.pt", made / "actor" / "model_world_size_2_rank_0.pt"):
        path.write_bytes(path.read_bytes())
        os.utime(path, ns=(now, now))
    node = command(home)
    (seen,) = look_once(node, node.local)
    (view,) = settle_local(node.local)
    assert view.save is not None
    for paths in (seen.assessment.paths, [file.path for file in view.save.part.files]):
        assert "actor/model_world_size_2_rank_0.pt" in paths
        assert "actor/model_world_size_2_rank_1.pt" not in paths


def test_verify_lets_the_tracker_close_a_save_as_the_daemon_does(make_home):
    """fully_async: `data.pt` comes from another process, long before the shards."""
    home = make_home()
    made = verl_step(home.out, 20)
    early = made.stat().st_mtime_ns - 600 * 10**9
    os.utime(made / "data.pt", ns=(early, early))
    verdict = verify_path(
        str(made), level=Level.FULL, deep=DeepLimits(60.0, 1 << 30), window_ns=3600 * 10**9, layout_name="verl"
    )
    assert verdict.problems == ()


def test_a_command_says_what_it_waits_for_once_that_lasts(make_home):
    home = make_home()
    verl_step(home.out, 20, world=2)
    verl_step(home.out, 40, world=2)
    node, said = command(home), []
    node.local.setup = replace(node.local.setup, settle_s=4.0)
    assert {view.state for view in settle_local(node.local, say=said.append)} == {LocalState.VERIFIED}
    assert said == ["waiting: step 40, 20 may still be written, until nothing has changed there for 4 s"]
    assert settle_local(node.local, say=said.append)
    assert len(said) == 1
