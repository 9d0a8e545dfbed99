"""The codec alone, in one thread."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.measure import run as run_child
from benchmarks.results import Arm, Table, Target, against, figure
from benchmarks.rounds import Bench

__all__ = ["METHOD", "TITLE", "run"]

TITLE = "Codec, one thread"
METHOD = (
    "The tensors of a step, cut into chunks of at most 8 MiB, encoded and decoded one by one in one process. zstd "
    "is python-zstandard at level 1; ZipNN is told the dtype and runs in one thread. GB/s are raw bytes per CPU "
    "second. Every decoded chunk is compared with the original, untimed. Digests are not counted here. All three "
    "get memory as ckptsync's commands do: what was freed is used again."
)
MEGABYTES = {"full": 250, "quick": 40}
ENCODE, DECODE, SIZE = "encode GB/s", "decode GB/s", "size/raw"


def run(bench: Bench) -> tuple[list[Table], list[Target]]:
    """fp32 and bf16."""
    fp32, bf16 = _table(bench, "fp32"), _table(bench, "bf16")
    return [fp32, bf16], [
        against(fp32, "zstd -1", 1.5, "codec, fp32: encoding speed to zstd -1's", figure=ENCODE, at_least=True),
        against(fp32, "zstd -1", 0.91, "codec, fp32: size to zstd -1's", figure=SIZE),
        against(fp32, "ZipNN", 1.02, "codec, fp32: size to ZipNN's", figure=SIZE),
        against(fp32, "ZipNN", 2.0, "codec, fp32: encoding speed to ZipNN's", figure=ENCODE, at_least=True),
        figure(fp32, "ckptsync", DECODE, 1.5, "codec, fp32: decoding", "GB/s", at_least=True),
        against(bf16, "zstd -1", 0.87, "codec, bf16: size to zstd -1's", figure=SIZE),
        against(bf16, "zstd -1", 1.2, "codec, bf16: encoding speed to zstd -1's", figure=ENCODE, at_least=True),
    ]


def _table(bench: Bench, dtype: str) -> Table:
    step = bench.series(dtype)[-1]
    megabytes = MEGABYTES[bench.scale.name]
    words: list[str | Path] = [
        sys.executable,
        "-m",
        "benchmarks.codec_worker",
        step.path,
        str(megabytes),
        str(bench.rounds),
    ]
    told = json.loads(run_child(words, cwd=bench.work, environ=bench.importable).output)
    size = told["bytes"]
    arms = [_arm(name, values, size) for name, values in told["arms"].items()]
    for arm in arms:
        bench.say(f"{dtype}, {arm.name}: " + ", ".join(f"{what} {arm.spread(what).median:.3g}" for what in arm.figures))
    return Table(f"{dtype} weights and moments, {size / 1e6:.0f} MB of them", arms, versus="", drawn=False)


def _arm(name: str, values: dict[str, list[float]], size: int) -> Arm:
    figures = {
        ENCODE: [size / 1e9 / seconds for seconds in values["encode s"]],
        DECODE: [size / 1e9 / seconds for seconds in values["decode s"]],
        SIZE: [encoded / size for encoded in values["size"]],
    }
    return Arm(name, figures)
