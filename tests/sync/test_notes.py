"""Pins and tags: in the store under a digest, before that on this node; and verdicts on commits that honour them."""

from __future__ import annotations

import pytest

from ckptsync.actions.notes import pin_step, tag_step, unpin_step
from ckptsync.errors import ConflictError, StoreRefused
from ckptsync.model.policies import Best, Policies
from ckptsync.model.retention import condemned
from ckptsync.model.rounds import Decision, Place
from ckptsync.store import keys
from ckptsync.store.retrying import RetryingStore
from ckptsync.sync.collect_lists import render
from ckptsync.sync.history import BY_SCRUB, mark_bad
from ckptsync.sync.notes import Note, Pin, Said, Waiting, identity, put_pin, put_tag, read_said
from ckptsync.sync.remote import Remote
from ckptsync.sync.retain import Asked, ask, look, read_commits, remote_verdicts
from ckptsync.testing.checkpoints import verl_step

DIGEST = "0123456789abcdef" * 4
HOUR = 3600 * 10**9


def silent(_line):
    pass


@pytest.fixture
def remote(bench):
    remote = Remote(RetryingStore(bench.store), "run")
    remote.open_run("")
    return remote


def commits(node, remote, **options):
    rules, window_ns = node.layout_of(), node.window_ns
    told = look(remote, rules, window_ns=window_ns, metrics=[options.get("metric", "")])
    return read_commits(remote, rules, told, window_ns=window_ns, **options)


def test_what_was_said_is_read_back(remote):
    put_pin(remote, Pin(DIGEST, 20, 7, "caf\u00e9 \u2713"))
    put_tag(remote, DIGEST, "val/reward", 0.1)
    put_tag(remote, DIGEST, "other", 5)
    said = read_said(remote, ["val/reward"])
    assert said == Said((Pin(DIGEST, 20, 7, "caf\u00e9 \u2713"),), {("val/reward", DIGEST): 0.1})
    assert read_said(remote).tags == {}
    assert said.tag_of("val/reward", ["f" * 64, DIGEST]) == 0.1
    assert said.tag_of("other", [DIGEST]) is None
    assert read_said(remote, ["other", "val/reward"]).tags == {("val/reward", DIGEST): 0.1, ("other", DIGEST): 5}
    put_tag(remote, DIGEST, "val/reward", 0.2)
    assert read_said(remote, ["val/reward"]).tags == {("val/reward", DIGEST): 0.2}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_tag_that_is_no_number_is_none(remote, value):
    """`ckptsync tag` refuses them; who can write to the store need not."""
    put_tag(remote, DIGEST, "val/reward", value)
    assert read_said(remote, ["val/reward"]).tags == {}


def test_what_was_read_before_is_not_read_again_unless_it_changed(remote):
    before = {}
    put_pin(remote, Pin(DIGEST, 20, 7, "first"))
    assert read_said(remote, (), before).pins[0].note == "first"
    (meta,) = before
    before[meta] = before[meta].replace(b"first", b"again")
    assert read_said(remote, (), before).pins[0].note == "again"
    put_pin(remote, Pin(DIGEST, 20, 7, "a longer second"))
    assert read_said(remote, (), before).pins[0].note == "a longer second"
    remote.store.delete(keys.pin_key("run", DIGEST))
    assert read_said(remote, (), before).pins == ()
    assert before == {}


@pytest.mark.parametrize("data", [b"", b"junk", b'{"kind":"pin"}', b'{"format":[2,0],"kind":"pin"}', b"\xff" * 99])
def test_a_pin_that_cannot_be_read_holds_all_the_same(remote, data):
    remote.store.put(keys.pin_key("run", DIGEST), data)
    before = {}
    for _ in range(2):
        said = read_said(remote, (), before)
        assert said.pin_of([DIGEST], 20, 0, HOUR) == ""
    assert said.pin_of(["f" * 64], 20, 0, HOUR) is None


def test_a_save_is_known_by_its_digests_or_by_number_and_time():
    said = Said((Pin(DIGEST, 20, 10 * HOUR, "why"),))
    assert said.pin_of([DIGEST], 99, 0, HOUR) == "why"
    assert said.pin_of([], 20, 11 * HOUR, HOUR) == "why"
    assert said.pin_of([], 20, 11 * HOUR + 1, HOUR) is None
    assert said.pin_of([], 30, 10 * HOUR, HOUR) is None


def test_a_note_is_kept_by_content_until_a_commit_has_it(bench, remote, tmp_path):
    verl_step(bench.out("a"), 20)
    node = bench.node("a")
    save = bench.save(node, 20)
    waiting, name = Waiting(node.config.state_dir), identity(save.part)
    assert waiting.all() == {}
    note = Note(20, "why", {"acc": 0.5})
    waiting.put(name, note)
    waiting.tell(remote, name, save.part, DIGEST, committed=False)
    assert read_said(remote, ["acc"]).pin_of([DIGEST], 0, 0, 0) == "why"
    assert waiting.get(name) == Note(20, "why", {"acc": 0.5}, DIGEST)
    waiting.tell(remote, name, save.part, "f" * 64, committed=True)
    assert waiting.all() == {}
    assert {pin.digest for pin in read_said(remote).pins} == {DIGEST, "f" * 64}
    assert read_said(remote, ["acc"]).tags == {("acc", DIGEST): 0.5, ("acc", "f" * 64): 0.5}


def test_a_pin_that_another_node_took_away_is_not_put_again(bench, remote):
    verl_step(bench.out("a"), 20)
    node = bench.node("a")
    save = bench.save(node, 20)
    waiting, name = Waiting(node.config.state_dir), identity(save.part)
    waiting.put(name, Note(20, "why"))
    waiting.tell(remote, name, save.part, DIGEST, committed=False)
    remote.store.delete(keys.pin_key("run", DIGEST))
    waiting.tell(remote, name, save.part, "f" * 64, committed=True)
    assert read_said(remote).pins == ()
    assert waiting.all() == {}


def test_the_pin_of_a_part_holds_for_its_commit_and_unpin_takes_all(bench):
    """Two nodes; the pin is set when one part is put and the step is not whole yet."""
    for step in (20, 40):
        for name, rank in (("b", 1), ("a", 0)):
            verl_step(bench.out(name), step, world=2, ranks=[rank], driver=rank == 0)
    a, b = bench.node("a"), bench.node("b")
    for step in (20, 40):
        bench.push_command(a, step)
    target = pin_step(a, 20, "whole later", say=silent)
    assert target.commit == ""
    assert a.saves.mark_of(target.save, "due") is not None
    for step in (20, 40):
        bench.push_command(b, step)
    remote = a.remote()
    policies = Policies(last=1)
    found = commits(a, remote)
    verdicts = remote_verdicts(found, policies, 0)
    assert {step: verdict.keep for (step, _), verdict in verdicts.items()} == {20: True, 40: True}
    assert "pinned: whole later" in [str(r) for (step, _), v in verdicts.items() if step == 20 for r in v.reasons]
    # node b has said nothing, and knows it by what the store holds
    assert ask_of(b).said.pin_of([], 20, bench.save(b, 20).part.saved_ns, b.window_ns) == "whole later"
    assert unpin_step(b, 20, say=silent) == 1
    assert condemned(remote_verdicts(commits(a, remote), policies, 0)) != frozenset()


def ask_of(node, step=20, digest=DIGEST):
    remote, rules = node.remote(), node.layout_of()
    told = look(remote, rules, window_ns=0)
    return ask(remote, Asked([(step, digest)]), rules, told, window_ns=0, metric="", values={})


def test_a_pin_is_of_the_newest_save_of_its_number(bench):
    """The run went back and saved 20 again: the pin before stays with the first save, the next is of the second."""
    verl_step(bench.out("a"), 20)
    node = bench.node("a")
    bench.push_command(node, 20)
    first = pin_step(node, 20, "first", say=silent).commit
    for path in bench.out("a").rglob("*"):
        if path.is_file():
            path.unlink()
    verl_step(bench.out("a"), 20, seed=5)
    node = bench.node("a")
    bench.push_command(node, 20)
    second = pin_step(node, 20, "second", say=silent).commit
    assert second not in ("", first)
    assert {pin.digest: pin.note for pin in read_said(node.remote()).pins} == {first: "first", second: "second"}


def test_commits_are_judged_with_metric_pin_and_bytes(bench):
    for step in (20, 40, 60):
        verl_step(bench.out("a"), step, n=200_000)
    node = bench.node("a")
    for step in (20, 40, 60):
        bench.push_command(node, step)
    tag_step(node, 20, {"acc": 0.9}, say=silent)
    tag_step(node, 40, {"acc": 0.2}, say=silent)
    remote = node.remote()
    found = commits(node, remote, metric="acc")
    assert [(facts.step, facts.metric) for facts in found.facts] == [(20, 0.9), (40, 0.2), (60, None)]
    verdicts = remote_verdicts(found, Policies(best=Best("acc")), 0)
    going = condemned(verdicts)
    assert {step for (step, digest) in verdicts if digest in going} == {40}
    sizes = found.bytes_of(remote, {facts.save for facts in found.facts} - going)
    stored = sum(meta.size for meta in remote.store.list(keys.chunks_prefix("run")))
    assert sum(found.bytes_of(remote, ())) == stored  # all together: every byte, each once
    assert 0 < sizes[1] < stored
    assert sum(sizes) <= stored


def test_shared_chunks_give_nothing_back_while_one_commit_needs_them(bench):
    """The same bytes under two numbers: either alone frees next to nothing, both free all of it."""
    verl_step(bench.out("a"), 20, n=200_000)
    node = bench.node("a")
    bench.push_command(node, 20)
    twin = bench.out("a") / "global_step_40"
    twin.mkdir()
    for path in (bench.out("a") / "global_step_20").rglob("*"):
        target = twin / path.relative_to(bench.out("a") / "global_step_20")
        target.mkdir(exist_ok=True) if path.is_dir() else target.write_bytes(path.read_bytes())
    (twin / "data.pt").touch()
    node = bench.node("a")
    bench.push_command(node, 40)
    found = commits(node, node.remote())
    first, second = (facts.save for facts in found.facts)
    stored = sum(meta.size for meta in node.remote().store.list(keys.chunks_prefix("run")))
    assert found.bytes_of(node.remote(), {second}) == [0, 0]
    assert found.bytes_of(node.remote(), ()) == [stored, 0]
    assert first != second


def test_the_answer_tells_lost_commits_from_collected_ones(bench):
    verl_step(bench.out("a"), 20)
    node = bench.node("a")
    bench.push_command(node, 20)
    commit = next(iter(node.remote().index(20).commits))
    assert ask_of(node, 20, commit).there == {commit}
    node.remote().store.delete(keys.commit_key("run", 20, commit))
    assert ask_of(node, 20, commit).there == frozenset()


def test_the_decision_of_the_last_resume_holds_and_what_it_left_is_nobodys_newest(bench):
    """Decided for 20 after 60 was saved: 20 is what a resume takes until the new line has a commit."""
    for step in (20, 40, 60):
        verl_step(bench.out("a"), step)
    node = bench.node("a")
    for step in (20, 40, 60):
        bench.push_command(node, step)
    remote = node.remote()
    by_step = {facts.step: facts for facts in commits(node, remote).facts}
    decision = Decision(
        Place("run", remote.run_id, "job-1", 1),
        "a",
        1,
        "commit",
        20,
        by_step[20].save,
        by_step[20].end_ns,
        by_step[60].end_ns + HOUR,
    )
    assert ask_of(node).decided == ""
    remote.store.put_new(keys.decision_key("run", "job-1", 1), decision.to_bytes())
    found = commits(node, remote)
    assert {facts.step: (facts.resumed, facts.left) for facts in found.facts} == {
        20: (True, False),
        40: (False, True),
        60: (False, True),
    }
    verdicts = {step: verdict for (step, _), verdict in remote_verdicts(found, Policies(last=1), 0).items()}
    assert {step: verdict.keep for step, verdict in verdicts.items()} == {20: True, 40: False, 60: True}
    assert [str(reason) for reason in verdicts[20].reasons] == [
        "the newest in the store",
        "the last resume started from it",
    ]
    assert ask_of(node).decided == by_step[20].save


def test_a_commit_that_is_marked_as_bad_goes(bench):
    for step in (20, 40):
        verl_step(bench.out("a"), step)
    node = bench.node("a")
    for step in (20, 40):
        bench.push_command(node, step)
    remote = node.remote()
    newest = next(facts for facts in commits(node, remote).facts if facts.step == 40)
    mark_bad(remote, 40, newest.save, node="a", why="it diverged")
    verdicts = remote_verdicts(commits(node, remote), Policies(last=1), 0)
    assert {step: verdict.keep for (step, _), verdict in verdicts.items()} == {20: True, 40: False}


def test_a_commit_that_a_scrub_found_damaged_stays_here_and_there(bench):
    """This disk may hold the only bytes that can heal it."""
    for step in (20, 40):
        verl_step(bench.out("a"), step)
    node = bench.node("a")
    for step in (20, 40):
        bench.push_command(node, step)
    remote = node.remote()
    damaged = next(facts.save for facts in commits(node, remote).facts if facts.step == 20)
    mark_bad(remote, 20, damaged, node="b", why=f"{BY_SCRUB}damaged chunk")
    verdicts = remote_verdicts(commits(node, remote), Policies(last=2), 0)
    assert {step: verdict.keep for (step, _), verdict in verdicts.items()} == {20: True, 40: True}
    assert ask_of(node, 20, damaged).there == frozenset()


class NoDelete:
    """A store whose role may not delete."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def delete(self, key):
        raise StoreRefused("the store refused", where=key, why="AccessDenied")


def test_a_role_that_may_not_delete_can_pin_but_not_unpin(bench):
    verl_step(bench.out("a"), 20)
    node = bench.node("a", store=NoDelete(bench.store))
    bench.push_command(node, 20)
    commit = pin_step(node, 20, "why", say=silent).commit
    with pytest.raises(StoreRefused, match="may delete below pins/"):
        unpin_step(node, 20, say=silent)
    assert [pin.digest for pin in read_said(node.remote()).pins] == [commit]


def test_a_pin_that_comes_after_the_collection_says_so(bench):
    verl_step(bench.out("a"), 20)
    node = bench.node("a")
    bench.push_command(node, 20)
    remote = node.remote()
    commit = next(iter(remote.index(20).commits))
    key = keys.commit_key("run", 20, commit)

    class Late:
        """A collector whose list comes between the look for the save and the pin."""

        def __getattr__(self, name):
            return getattr(bench.store, name)

        def put(self, name, data):
            if "/pins/" in name:
                bench.store.put_new(keys.list_key("run", 1), render("run", remote.run_id, [key], []))
            bench.store.put(name, data)

    late = bench.node("a", store=Late())
    with pytest.raises(ConflictError, match="a collection has condemned it"):
        pin_step(late, 20, "", say=silent)
    assert [pin.digest for pin in read_said(remote).pins] == [commit]  # and the sweep sees it
