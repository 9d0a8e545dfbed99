"""SIGKILL at any moment, again and again, while a trainer saves, saves in place, and deletes."""

import os
import random
import shutil
import threading
import time

import pytest

from ckptsync.testing.checkpoints import age, verl_step

KILL_AFTER_S = 0.3
KEPT, AHEAD = 3, 4


def content(path):
    """Path -> bytes of all files."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


class Trainer(threading.Thread):
    """Saves, sometimes again into an older step, and keeps few steps; under `lock` while it changes anything.

    It waits when `latest` is far behind, as a slow machine would else verify ever more steps at each start.

    `meant` holds the whole content of each step that is finished; a step that is being written or deleted is not in it.
    What `latest` names is left alone, as only a scan can tell that it was changed.
    """

    def __init__(self, ckpt, seed):
        super().__init__(daemon=True)
        self.ckpt, self.random = ckpt, random.Random(seed)
        self.lock, self.meant = threading.RLock(), {}
        self.order, self.saved, self.stop = [], 0, threading.Event()
        self.again = self.deleted = 0

    def run(self):
        step = 0
        while not self.stop.is_set():
            step += 20
            self.save(step)
            self.stop.wait(self.random.uniform(0.05, 0.3))
            while len(self.order) > len(self.behind()) + AHEAD and not self.stop.is_set():
                self.stop.wait(0.02)
            if self.random.random() < 0.3:
                self.save_again()
            self.prune()

    def between_files(self, _):
        """The lock is given up meanwhile."""
        self.lock.release()
        self.stop.wait(self.random.choice((0, 0, 0.002, 0.01)))
        self.lock.acquire()

    def save(self, step):
        name = f"global_step_{step}"
        self.saved += 1
        with self.lock:
            self.meant.pop(name, None)
            directory = verl_step(self.ckpt, step, world=2, seed=self.saved, n=20_000, pause=self.between_files)
            self.meant[name] = content(directory)
            self.order = [other for other in self.order if other != name] + [name]

    def behind(self):
        """The steps that were saved before the one that `latest` names, oldest first."""
        named = os.readlink(self.ckpt / "latest") if (self.ckpt / "latest").is_symlink() else None
        return self.order[: self.order.index(named)] if named in self.order else []

    def save_again(self):
        with self.lock:
            behind = self.behind()
            name = self.random.choice(behind) if behind else None
            if name is None:
                return
            self.meant.pop(name)
            age(self.ckpt / name, 60)  # as if it had been there for long: the barrier's slack is over
        self.again += 1
        self.save(int(name.rpartition("_")[2]))

    def prune(self):
        with self.lock:
            for name in self.behind()[:-KEPT]:
                self.meant.pop(name)
                self.order.remove(name)
                shutil.rmtree(self.ckpt / name / "actor")
                self.deleted += 1


def check_latest(ckpt, meant):
    """`latest` is absent, or names a step with exactly the bytes that were meant; returns the name."""
    link = ckpt / "latest"
    if not os.path.lexists(link):
        return None
    assert link.is_symlink()
    name = os.readlink(link)
    assert name in meant, f"latest names {name}, which is not a finished step"
    assert content(ckpt / name) == meant[name], f"latest names {name}, which holds other bytes than were saved"
    return name


def check_visible(ckpt):
    """Nothing but what the trainer and `latest` are called is in output_dir."""
    for name in os.listdir(ckpt):
        assert name in ("latest", "latest_checkpointed_iteration.txt") or name.startswith("global_step_"), name
        assert "#" not in name


class Watcher(threading.Thread):
    """Looks at `latest` all the time."""

    def __init__(self, ckpt, lock, meant):
        super().__init__(daemon=True)
        self.ckpt, self.lock, self.meant = ckpt, lock, meant
        self.stop, self.seen, self.fault = threading.Event(), [], None

    def run(self):
        while not self.stop.wait(0.003):
            try:
                with self.lock:
                    check_visible(self.ckpt)
                    name = check_latest(self.ckpt, self.meant)
            except (AssertionError, OSError) as error:
                self.fault = error
                return
            if not self.seen or self.seen[-1] != name:
                self.seen.append(name)


def end(*threads):
    for thread in threads:
        thread.stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def first_pass(node, daemon):
    status = node.state / "status.json"
    return lambda: status.exists() and f'"pid": {daemon.pid},' in status.read_text()


def next_move(node, daemon):
    before = node.named()
    return lambda: node.named() != before


def at_once(node, daemon):
    return lambda: True


def wait_until(condition, daemon):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    pytest.fail(f"not within 10 s: {daemon.kill().err}")


def kill_daemons(node, kills, seed):
    chance = random.Random(seed)
    trainer = Trainer(node.ckpt, seed)
    watcher = Watcher(node.ckpt, trainer.lock, trainer.meant)
    trainer.start()
    watcher.start()
    try:
        for _ in range(kills):
            daemon = node.start("run")
            wait_until(chance.choice((at_once, first_pass, next_move))(node, daemon), daemon)
            time.sleep(chance.uniform(0, KILL_AFTER_S))
            done = daemon.kill()
            assert done.code == -9, f"the daemon ended by itself: {done.err}"
            with trainer.lock:
                check_visible(node.ckpt)
                check_latest(node.ckpt, trainer.meant)
            assert watcher.fault is None, watcher.fault
    finally:
        end(trainer, watcher)
    assert watcher.fault is None, watcher.fault
    return trainer, watcher


def check_recovery(node, trainer):
    """The next start clears up, goes on, and brings the newest step in."""
    node.once()
    newest = trainer.order[-1]
    assert check_latest(node.ckpt, trainer.meant) == newest
    assert node.leftovers() == []
    row = node.steps()[int(newest.rpartition("_")[2])]
    assert (row["local"], row["remote"], row["latest"]) == ("verified", "committed", True)
    assert os.listdir(node.staging / "linked") == []


def run_daemon_kills(node, kills, seed):
    trainer, watcher = kill_daemons(node, kills, seed)
    assert len([name for name in watcher.seen if name]) > kills // 8, f"latest hardly moved: {watcher.seen}"
    assert trainer.again, "no step was saved in place"
    assert trainer.deleted, "no step was deleted"
    check_recovery(node, trainer)
    shutil.rmtree(node.ckpt)
    node.ckpt.mkdir()
    newest = trainer.order[-1]
    assert node.pull()["step"] == int(newest.rpartition("_")[2])
    assert content(node.ckpt / newest) == trainer.meant[newest]


def run_pull_kills(node, kills, seed):
    """Pulls killed at random; output_dir shows whole steps only, and the tracker and `latest` only what is there."""
    chance = random.Random(seed)
    meant = {}
    for step in (20, 40, 60):
        meant[f"global_step_{step}"] = content(verl_step(node.ckpt, step, world=2, n=400_000))
    node.once()
    ended = 0
    for _ in range(kills):
        if chance.random() < 0.4:
            shutil.rmtree(node.ckpt)
            node.ckpt.mkdir()
        pull = node.start("pull", "--step", chance.choice((20, 40, 60)))
        time.sleep(chance.uniform(0, KILL_AFTER_S))
        ended += pull.kill().code == 0
        check_visible(node.ckpt)
        check_latest(node.ckpt, meant)
        for name in os.listdir(node.ckpt):
            if name.startswith("global_step_"):
                assert content(node.ckpt / name) == meant[name]
        if node.tracker.exists():
            # written when its step is there; a pull that was killed later may have moved that step aside
            assert node.tracker.read_text() in ("20", "40", "60")
    assert ended < kills, "every pull was faster than its kill"
    for step in (20, 60):
        node.pull("--step", str(step))
        assert content(node.ckpt / f"global_step_{step}") == meant[f"global_step_{step}"]
        assert node.named() == f"global_step_{step}"
        assert node.tracker.read_text() == str(step)
        assert node.leftovers() == []


def test_latest_and_store_survive_40_kills_of_the_daemon(node):
    run_daemon_kills(node, 40, seed=1)


def test_output_dir_survives_12_kills_of_a_pull(node):
    run_pull_kills(node, 12, seed=2)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10))
def test_latest_and_store_survive_50_more_kills(node, seed):
    run_daemon_kills(node, 50, seed=100 + seed)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(3))
def test_output_dir_survives_50_more_kills_of_a_pull(node, seed):
    run_pull_kills(node, 50, seed=200 + seed)


def copy_in_place(ckpt, stop, lock, meant):
    """What ckptsync must not be: `latest` as a directory whose files are copied over."""
    while not stop.is_set():
        with lock:
            done = sorted(meant, key=lambda name: int(name.rpartition("_")[2]))
        source = ckpt / done[-1] if done else None
        for path in sorted(source.rglob("*")) if source else ():
            target = ckpt / "latest" / path.relative_to(source)
            if path.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


class AsDirectory(Watcher):
    """The same check for a `latest` that is a directory: it holds one step that was meant, exactly."""

    def run(self):
        while not self.stop.wait(0.003):
            with self.lock:
                here = content(self.ckpt / "latest")
                if here and here not in self.meant.values():
                    self.fault = AssertionError("latest holds bytes of several steps, or half of one")
                    return
                self.seen.append(bool(here))


def test_the_control_a_copy_in_place_fails_the_same_check(node):
    trainer = Trainer(node.ckpt, 3)
    trainer.behind = lambda: trainer.order[:-1]
    trainer.save_again = trainer.prune = lambda: None  # this copier has no other excuse
    watcher = AsDirectory(node.ckpt, trainer.lock, trainer.meant)
    copier = threading.Thread(
        target=copy_in_place, args=(node.ckpt, trainer.stop, trainer.lock, trainer.meant), daemon=True
    )
    for thread in (trainer, watcher, copier):
        thread.start()
    watcher.join(20)
    end(trainer, watcher)
    copier.join(20)
    assert watcher.fault is not None, "the check did not notice"
