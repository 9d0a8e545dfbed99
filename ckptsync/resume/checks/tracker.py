"""`tracker`: the start resumes from the newest whole step, and not from step 0 or an older one without a word.

What the start would do is found out by the trainer's own rules (`resume/start.py`). With `--fix` the tracker is written
again, as a pull writes it, where that alone makes the start right: the newest whole step is on this disk.
"""

from __future__ import annotations

import os
from dataclasses import replace

from ckptsync.app import layout_in
from ckptsync.disk.scan import list_step, step_dirs
from ckptsync.disk.tracker import write_tracker
from ckptsync.errors import CkptsyncError
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome, failed, passed, skipped, warned
from ckptsync.resume.start import PULL, Start, pull_it, saves_elsewhere, start_of

__all__ = ["check"]

_LOCK_S = 10.0
_SILENT = "the store does not tell"
_ASK = "see the check `store`"
_SAY_ALL = "give absolute paths, and the trainer's whole command"


def check(context: Context) -> Outcome:
    """fail: the trainer would start from 0, stop, or load what is not whole; warn: it resumes, but from an older step.

    skip: there is no step yet.
    """
    newest = context.wanted_path
    start = start_of(context.node, context.now, cwd=context.cwd, told=bool(context.words), newest=newest)
    if context.wanted is None and context.resumed is None and not start.path:
        return _nothing(context, start)
    if not newest and not start.path and not start.fault:
        start = Start(fault=f"step {context.wanted} is in the store, and no step is here", silent=True, remedy=PULL)
    judged = _judge(context, start, newest)
    if judged.status != "fail" or not context.fix or not _repairable(context, start, newest):
        return _with_fix(judged, context, start, newest)
    return _repair(context, newest, judged.message)


def _nothing(context: Context, start: Start) -> Outcome:
    """No whole step is known: then it is right to start from step 0."""
    if start.fault and not start.silent and context.words:
        return failed(start.fault, pull_it(context) if start.remedy == PULL else start.remedy)
    unseen = _unseen(context)
    if unseen is not None:
        return unseen
    layout = context.node.layout
    there = step_dirs(context.node.output_dir, layout) if layout is not None else ()
    if there:
        rest = "none is in the store" if context.store_asked else _SILENT
        message = f"none of {len(there)} step directories here is whole, and {rest}: it starts from step 0"
        return warned(message, "`ckptsync steps` says what they lack")
    if not context.store_asked:
        return skipped(f"no step is known here, and {_SILENT}", _ASK)
    where = context.node.output_dir or context.node.config.run.output_dir
    return skipped(f"no step is in {where} or in the store", "nothing to do before a first start")


def _unseen(context: Context) -> Outcome | None:
    """Steps that nobody looks after, since the configuration and the start do not fit: this is no first start."""
    run, layout = context.node.config.run, context.node.layout
    output_dir = context.node.output_dir or run.output_dir
    name, there = saves_elsewhere(context.node, context.now, context.cwd)
    if name:
        others = layout_in(there) is not None
        what = f"{name} is not output_dir, {output_dir}: ckptsync does not see what the trainer saves there"
        cure = "set [run] output_dir to it, or correct the argument"
        return failed(f"{what}, and there are steps", cure) if others else warned(what, cure)
    other = layout_in(output_dir) if layout is None or not step_dirs(output_dir, layout) else None
    if other is None or other.name == run.layout:
        return None
    what = f"the steps in {output_dir} are of layout {other.name}, and [run] layout = {run.layout!r} does not see them"
    return failed(what, f'set [run] layout = "{other.name}", or leave it out')


def _judge(context: Context, start: Start, newest: str) -> Outcome:
    told = bool(context.words)
    note = f"; but {'; '.join(start.doubts)}" if start.doubts else ""
    if start.fault:
        named = newest and start.remedy == PULL and not start.repairable  # the command names a step by its directory
        remedy = f"name {context.node.trainer_path(newest)} there; or {PULL}" if named else start.remedy
        return failed(_fault(context, start, newest) + ("" if told else note), remedy)
    step = _number(context, start.path)
    by = f"{start.by} leads to step {step}"
    if context.wanted is None:
        return failed(f"{by}, and no whole step is known{note}", pull_it(context))
    if step == context.wanted and not newest:
        return _other_save(context, f"{by}{note}")
    if step == context.wanted:
        return _newest_one(context, by, note, start.remedy or _SAY_ALL)
    where = "" if newest else " in the store"
    if not _sound(context, start.path):
        return failed(f"{by}, which is not whole; the newest whole step is {context.wanted}{where}{note}", PULL)
    return warned(
        f"{by}; the newest whole step is {context.wanted}{where}{note}", f"{PULL}; or go on, if that is meant"
    )


def _newest_one(context: Context, by: str, note: str, remedy: str) -> Outcome:
    """It is the newest whole step that there is, as far as could be looked."""
    if not context.store_asked:
        return warned(
            f"{by}, the newest whole step on this disk; whether the store has a newer one: {_SILENT}{note}", _ASK
        )
    message = f"{by}, the newest whole step{note}"
    if context.words and note:
        return warned(message, remedy)
    return passed(message)


def _other_save(context: Context, by: str) -> Outcome:
    """The right number, but the directory does not hold the save that is wanted."""
    if not _sound(context, context.resumed.path if context.resumed is not None else ""):
        return failed(f"{by}, which is not whole here; the store has it whole", PULL)
    return warned(f"{by}, but the store has a newer save of this number, or more of this one", PULL)


def _fault(context: Context, start: Start, newest: str) -> str:
    """With what there would be to resume from, so that nobody takes it for a first start."""
    if context.wanted is None:
        return start.fault
    where = "on this disk" if newest else "in the store"
    driver = "; the driver was on another node" if start.repairable and start.silent and _not_drivers(context) else ""
    return f"{start.fault}; step {context.wanted} is whole {where}{driver}"


def _not_drivers(context: Context) -> bool:
    """Whether no step here has a file that the trainer's driver writes, so that its tracker was never here, either."""
    layout, newest = context.node.layout, context.wanted_path
    if layout is None or not newest:
        return False
    try:
        return not layout.closing(list_step(newest).files)
    except CkptsyncError:
        return False


def _number(context: Context, path: str) -> int | None:
    layout = context.node.layout
    return layout.step_of(os.path.basename(path)) if layout is not None else None


def _sound(context: Context, path: str) -> bool:
    """Whether the step that the start leads to could be loaded: verified, committed, or whole by its names."""
    resumed, layout = context.resumed, context.node.layout
    if resumed is None or layout is None or os.path.realpath(resumed.path) != os.path.realpath(path):
        return False
    if resumed.commit or resumed.part is not None:
        return True
    sizes = {name: stat.size for name, stat in resumed.listing.files.items()}
    lacking = layout.missing(sizes) if context.nodes == 1 else layout.missing_here(sizes, {})
    return bool(sizes) and not lacking and not layout.is_husk(sizes)


# -- repairing


def _repairable(context: Context, start: Start, newest: str) -> bool:
    """Whether writing the tracker makes the start right: it is the tracker that is wrong, and the step is here."""
    layout = context.node.layout
    if not newest or layout is None or layout.tracker is None:
        return False
    return start.repairable or (not start.fault and start.by == layout.tracker.name)


def _with_fix(judged: Outcome, context: Context, start: Start, newest: str) -> Outcome:
    if judged.status != "fail" or not _repairable(context, start, newest):
        return judged
    return replace(judged, remedy=f"`ckptsync preflight --fix` points it at step {context.wanted}; or {judged.remedy}")


def _repair(context: Context, newest: str, why: str) -> Outcome:
    """Raises ConflictError: somebody else works on the run. As the disk says."""
    node = context.node
    assert node.layout is not None, "there is a step"
    assert node.layout.tracker is not None, "see `_repairable`"
    assert context.wanted is not None, "it has a directory"
    name, lock = node.layout.tracker.name, node.lock()
    context.say(f"{os.path.join(node.output_dir, name)} is written: {node.layout.tracker.render(context.wanted)}")
    lock.acquire(_LOCK_S)
    try:
        if not os.path.isdir(newest):
            return failed(f"{newest} is gone: nothing was written", PULL)
        write_tracker(node.output_dir, node.layout, context.wanted, temp_dir=node.staging.temp_dir)
    finally:
        lock.release()
    return passed(f"{name} names step {context.wanted} now; before: {why}")
