"""`dataset`: the resume reads the data that the original read, and goes on in it where the original stopped.

A dataloader's state is a number of samples: over other files, or the same ones in another order, it points at other
samples, and nobody is told. Content is compared by `datasets.describe`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Literal

from ckptsync.resume.compare import Finding, judge, judged, not_known, override, pairs, record_contents, shown
from ckptsync.resume.contents.data_position import judge_loader, judge_position
from ckptsync.resume.contents.datafiles import Place, place_of
from ckptsync.resume.contents.dataloader import Unreadable, position
from ckptsync.resume.contents.datasets import TRAIN, VAL, describe, files_of, has_pyarrow
from ckptsync.resume.context import Context
from ckptsync.resume.outcome import Outcome

__all__ = ["check"]

Said = Mapping[str, object]

_INSTALL = "install ckptsync's extra `preflight` (pip install 'ckptsync[preflight]'): rows need pyarrow"
_NAMED_MAX = 5
_SELECTION = (
    "data.shuffle",
    "data.train_max_samples",
    "data.filter_overlong_prompts",
    "data.dataloader_num_workers",
    "data.custom_cls.path",
    "data.custom_cls.name",
)
"""Which samples of the files count, and in which order (verl 0.9.1, utils/dataset/rl_dataset.py, ppo/utils.py)."""


def check(context: Context) -> Outcome:
    """fail: other training files, other rows, schema or content, not readable, or a position beyond their end.

    warn: other validation files, or a position that does not fit step x batch size. skip: the files or their content
    are not known for one side, or pyarrow is missing.
    """
    place = place_of(context.node, context.cwd)
    train, val = (describe(files_of(context.now, name) or (), place) for name in (TRAIN, VAL))
    findings = [
        _names(context, TRAIN, "fail"),
        *_content(context, TRAIN, train, place),
        _names(context, VAL, "warn"),
        *_content(context, VAL, val, place),
        *(judged(each, changed="fail") for each in pairs(context, _SELECTION)),
        *_position(context, train),
    ]
    return judge(findings, "as in the original")


def _names(context: Context, name: str, changed: Literal["fail", "warn"]) -> Finding:
    """The paths in the settings, one by one."""
    then, now = files_of(context.then, name), files_of(context.now, name)
    if then is None or now is None:
        if name != TRAIN and not (context.then.is_unresolved(name) or context.now.is_unresolved(name)):
            return Finding("pass", "")
        return not_known(context, name, [name], then=then is None, now=now is None)
    if then == now:
        return Finding("pass", f"{name}: {_some(now)}")
    if sorted(then) == sorted(now):
        what = f"{name}: the same files in another order, so the position means other samples"
    else:
        gone, new = [p for p in then if p not in now], [p for p in now if p not in then]
        what = f"{name}: the original had {_some(gone) or 'the same'}, the start has {_some(new) or 'fewer'}"
    return Finding(changed, what, f"add {override(name, list(then) if len(then) != 1 else then[0])}")


def _some(paths: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(paths) - _NAMED_MAX} more" if len(paths) > _NAMED_MAX else ""
    return ", ".join(shown(path) for path in paths[:_NAMED_MAX]) + more


def _content(context: Context, name: str, found: Mapping[str, Said], place: Place) -> Iterator[Finding]:
    """What is in the files now against what the launch recorded of them."""
    changed: Literal["fail", "warn"] = "fail" if name == TRAIN else "warn"
    recorded = context.record.datasets if context.record is not None else {}
    unknown = []
    listed = frozenset(files_of(context.now, name) or ())
    for path, said in found.items():
        before = recorded.get(path, {})
        if "error" in said:
            yield _unreadable(path, said, place, changed)
        elif path not in recorded and path not in listed and not recorded.keys().isdisjoint(found):
            yield Finding(changed, f"{path} was not there then, and the pattern matches it now", "move it elsewhere")
        elif not before or "error" in before:
            unknown.append(path)
        elif different := _differences(before, said):
            what = f"{path} is not what it was: {', '.join(different)}"
            yield Finding(changed, what, "give the original's file: the position would mean other samples in this one")
    yield from _gone(context, name, found, recorded)
    if found and unknown:
        what = f"{_some(unknown)}: {_rows_told(found)}; what was in it when the step was written is not recorded"
        cure = record_contents(context)
        yield Finding("skip", what, cure if has_pyarrow() else f"{cure}; {_INSTALL}")
    elif found and not any("error" in said for said in found.values()):
        yield Finding("pass", f"{_rows_told(found)}")


def _gone(
    context: Context, name: str, found: Mapping[str, Said], recorded: Mapping[str, Mapping[str, object]]
) -> Iterator[Finding]:
    """Files that a pattern matched then, and no longer does."""
    for pattern in files_of(context.now, name) or ():
        directory, _, last = pattern.rpartition("/")
        gone = [
            path
            for path in recorded
            if path not in found and path.rpartition("/")[0] == directory and fnmatch.fnmatchcase(_last(path), last)
        ]
        if gone and pattern not in gone:
            yield Finding("fail" if name == TRAIN else "warn", f"{pattern}: {_some(gone)} is gone", "bring it back")


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _unreadable(path: str, said: Said, place: Place, changed: Literal["fail", "warn"]) -> Finding:
    code, why = said["error"], said["why"]
    if code == "denied":
        return Finding(changed, f"{path} cannot be read by this user: {why}", f"chmod +r {path}, or start as its owner")
    if code == "damaged":
        return Finding(changed, f"{path}: {why}", "bring it back as it was")
    if code == "missing" and not (place.mapped and "://" not in path):
        return Finding(changed, f"{path}: {why}", "bring it back, or correct the path")
    remedy = "run the preflight where the trainer runs, with the rights that it has"
    return Finding("skip", f"{path} was not looked at: {why}", remedy)


def _differences(then: Said, now: Said) -> list[str]:
    """What two descriptions of one file do not agree in."""
    different = []
    if {"rows"} <= then.keys() & now.keys() and then["rows"] != now["rows"]:
        different.append(f"{then['rows']} rows then, {now['rows']} now")
    if {"schema"} <= then.keys() & now.keys() and then["schema"] != now["schema"]:
        different.append("other columns")
    prints = [str(said.get("fingerprint", "")).partition(":") for said in (then, now)]
    comparable = prints[0][0] == prints[1][0]
    if (comparable and prints[0][2] != prints[1][2]) or (not comparable and then.get("bytes") != now.get("bytes")):
        kind = prints[1][0] if comparable else "size"
        different.append(f"other content ({kind}: {then.get('bytes')} bytes then, {now.get('bytes')} now)")
    return different


def _rows_told(found: Mapping[str, Said]) -> str:
    rows = _rows(found, {})
    files = f"{len(found)} file{'s' * (len(found) != 1)}"
    return f"{files}, {rows} rows" if rows is not None else f"{files}, rows not known"


def _rows(found: Mapping[str, Said], recorded: Mapping[str, Said]) -> int | None:
    """Of all files together; a file that is what it was has the rows that were recorded."""
    total = 0
    for path, said in found.items():
        before = recorded.get(path, {})
        unchanged = said.get("fingerprint") is not None and before.get("fingerprint") == said.get("fingerprint")
        rows = said.get("rows", before.get("rows") if unchanged else None)
        if type(rows) is not int:
            return None
        total += rows
    return total if found else None


def _position(context: Context, train: Mapping[str, Said]) -> Iterator[Finding]:
    """Where the step stands in its data, if it says so on this node."""
    if context.resumed is None:
        return
    try:
        found = position(context.resumed)
    except Unreadable as error:
        yield Finding("skip", str(error), "`ckptsync verify` says whether the file is whole")
        return
    if found is None:
        return
    rows = _rows(train, context.record.datasets if context.record is not None else {})
    finding = judge_position(found, context.resumed.step, rows, context)
    if finding.status == "skip" and rows is None and train and not has_pyarrow():
        finding = Finding("skip", finding.message, _INSTALL)
    yield finding
    yield from judge_loader(found, context)
