"""Whether the position that a step keeps in its data fits the start: its data, and the loader that goes on there."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ckptsync.resume.compare import Finding, override, say_it
from ckptsync.resume.contents.dataloader import Position
from ckptsync.resume.context import Context
from ckptsync.resume.settings import same

__all__ = ["judge_loader", "judge_position"]

_BATCH, _GEN_BATCH = "data.train_batch_size", "data.gen_batch_size"
_MAX_SAMPLES = "data.train_max_samples"
_LESS = ("data.filter_overlong_prompts",)
_MORE = ("algorithm.filter_groups.enable", "trainer.v1.sampler.sync_refill_failed_groups")
"""What makes the dataset shorter than its files, and what makes a step take more than a batch (verl 0.9.1)."""
_MODE = "trainer.v1.trainer_mode"
_DIGITS_MAX = 15
_SHUFFLE = "data.shuffle"
_WORKERS, _SFT_WORKERS = "data.dataloader_num_workers", "data.num_workers"


def judge_loader(found: Position, context: Context) -> Iterator[Finding]:
    """Whether the start's loader can load the state: torchdata 0.11 insists on the same workers and sampler (seen)."""
    name = _SFT_WORKERS if found.share else _WORKERS
    known = context.now.get(name)
    if found.workers is not None and known is not None and not same(known.value, found.workers):
        what = (
            f"{found.source} is of a loader with {found.workers} workers, the start has {override(name, known.value)}"
        )
        yield Finding("fail", f"{what}: it cannot load that", f"add {override(name, found.workers)}")
    shuffle = context.now.get(_SHUFFLE)
    if found.shuffled and shuffle is not None and same(shuffle.value, False):
        what = f"{found.source} is of a shuffled dataset, the start has {override(_SHUFFLE, shuffle.value)}"
        yield Finding("fail", f"{what}: it cannot load that", f"add {override(_SHUFFLE, True)}")


def judge_position(found: Position, step: int, rows: int | None, context: Context) -> Finding:
    """Judge the position of step number `step`.

    Args:
        found: the position.
        step: whose it is.
        rows: of the training files together; None = not known.
        context: for the batch size, and for what changes how many samples a step takes.
    """
    batch = _number(context, _BATCH)
    samples = _samples(context, found, batch)
    if samples is None or rows is None:
        what = f"{found.source} is not compared with the data: {'rows' if rows is None else 'batch size'} not known"
        return Finding("skip", what, "see what else this check says" if rows is None else say_it(context))
    told = f"{found.source} stands at sample {samples}"
    if samples > rows:
        remedy = "give the files that the original had: these have fewer rows"
        return Finding("fail", f"{told}, beyond the end of the data ({rows} rows)", remedy)
    limit = _number(context, _MAX_SAMPLES)
    length = min(rows, limit) if limit else rows
    if batch is None or batch > length or found.share or any(_is_on(context, name) for name in (*_LESS, *_MORE)):
        return Finding("pass", f"{told} of {length}")
    if _distance(samples, step, batch, length) <= _tolerance(context, batch):
        return Finding("pass", f"{told} of {length}, as {step} steps of {batch} should")
    what = f"{told} of {length}; {step} steps of {batch} would end at {_expected(step, batch, length)[0][0]}"
    remedy = (
        f"compare {_BATCH} and the files with the original's; if it was resumed without its dataloader's state before, "
        "or prompts are filtered, this is expected"
    )
    return Finding("warn", what, remedy)


def _samples(context: Context, found: Position, batch: int | None) -> int | None:
    """Samples; where only batches are known, times the loader's batch size."""
    if found.samples is not None:
        return found.samples
    size = _number(context, _GEN_BATCH) or batch
    return found.batches * size if found.batches is not None and size is not None else None


def _expected(step: int, batch: int, length: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(position, length of a pass): where the last incomplete batch of a pass is dropped, and where it is not."""
    whole = length // batch
    return ((step % whole) * batch, whole * batch), (step * batch % length, length)


def _distance(samples: int, step: int, batch: int, length: int) -> int:
    """How far off it is, around the end of a pass: its end is the beginning of the next one."""
    gaps = [((samples - at) % period, period) for at, period in _expected(step, batch, length)]
    return min(min(gap, period - gap) for gap, period in gaps)


def _tolerance(context: Context, batch: int) -> int:
    """A batch; and what asynchronous trainers fetch ahead."""
    mode = context.now.get(_MODE)
    ahead = context.now.get(f"trainer.v1.{mode.value}.num_warmup_batches") if mode is not None else None
    try:
        batches = math.ceil(float(str(ahead.value))) if ahead is not None else 0
    except (ValueError, OverflowError):
        batches = 0
    return batch * (1 + max(batches, 0))


def _is_on(context: Context, name: str) -> bool:
    known = context.now.get(name)
    return known is not None and same(known.value, True)


def _number(context: Context, name: str) -> int | None:
    """A positive number; None where it is not known, or off (-1, null)."""
    known = context.now.get(name) or context.then.get(name)
    text = str(known.value) if known is not None else ""
    return int(text) or None if text.isdecimal() and len(text) <= _DIGITS_MAX else None
