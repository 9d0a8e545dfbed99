"""Where the time of a push went."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ckptsync.chunks.transfer import Sent

__all__ = ["STAGES", "Profile"]

STAGES = ("read", "hash", "encode", "put", "wait")
_MOSTLY = 0.5
_GB = 1e9


@dataclass(slots=True)
class Profile:
    """Sums over the threads of one push; times in seconds, sizes in bytes.

    Attributes:
        wall_s: the whole push, with its requests before and after the chunks.
        chunks_s: of it, while chunks were sent.
        cpu_s: processor time of the process meanwhile.
        threads: workers at most.
        chunks, raw, sent: chunks that were not in the store yet; their bytes before and after encoding.
        skipped, skipped_raw: chunks that were there already, and their bytes.
        read_s, hash_s, encode_s, put_s: thread time in each stage. Putting holds no waiting.
        throttled_s, retry_s: thread time spent waiting for the bandwidth limit, and between attempts.
        retries: requests that were sent again.
        codecs: how many chunks each codec wrote.
    """

    wall_s: float = 0.0
    chunks_s: float = 0.0
    cpu_s: float = 0.0
    threads: int = 0
    chunks: int = 0
    raw: int = 0
    sent: int = 0
    skipped: int = 0
    skipped_raw: int = 0
    read_s: float = 0.0
    hash_s: float = 0.0
    encode_s: float = 0.0
    put_s: float = 0.0
    throttled_s: float = 0.0
    retry_s: float = 0.0
    retries: int = 0
    codecs: Counter[str] = field(default_factory=Counter)

    def add(self, raw: int, sent: Sent) -> None:
        """Count a chunk that is in the store now."""
        self.chunks += 1
        self.raw += raw
        self.sent += sent.size
        self.read_s += sent.read_s
        self.hash_s += sent.hash_s
        self.encode_s += sent.encode_s
        self.put_s += sent.put_s
        self.codecs[sent.codec] += 1

    def waited(self, retries: int, retry_s: float, throttled_s: float) -> None:
        """Take the waiting out of the time of the puts, which it happened in."""
        self.retries, self.retry_s, self.throttled_s = retries, retry_s, throttled_s
        self.put_s = max(0.0, self.put_s - retry_s - throttled_s)

    @property
    def wait_s(self) -> float:
        """Thread time in none of the other stages: for the limit, for room in memory, for the trainer's sake."""
        return max(0.0, self.threads * self.chunks_s - self.read_s - self.hash_s - self.encode_s - self.put_s)

    def stage_s(self, stage: str) -> float:
        """Thread time of one of STAGES."""
        return float(getattr(self, f"{stage}_s"))

    @property
    def bottleneck(self) -> str:
        """One sentence for people."""
        if not self.chunks:
            return "Nothing had to be sent: every chunk was in the store already."
        if self.chunks_s < _MOSTLY * self.wall_s:
            return "Most of the time went into requests before and after the chunks: the store's latency."
        total = sum(map(self.stage_s, STAGES)) or 1.0
        if self.throttled_s > _MOSTLY * total:
            return "The bandwidth limit: most of the threads' time went into waiting for it."
        stage = max(STAGES, key=self.stage_s)
        return f"{_CAUSES[stage]} ({self.stage_s(stage) / total:.0%} of the threads' time: {stage})."

    def describe(self) -> dict[str, object]:
        """Plain JSON types: seconds and bytes."""
        numbers = ("wall_s", "chunks_s", "cpu_s", "throttled_s", "retry_s")
        counts = ("threads", "chunks", "raw", "sent", "skipped", "skipped_raw", "retries")
        return {
            **{name: getattr(self, name) for name in counts},
            **{name: round(getattr(self, name), 6) for name in numbers},
            "stages_s": {stage: round(self.stage_s(stage), 6) for stage in STAGES},
            "codecs": dict(self.codecs),
            "cpu_s_per_gb": round(self.cpu_s * _GB / self.raw, 3) if self.raw else None,
            "bottleneck": self.bottleneck,
        }


_CAUSES = {
    "read": "The disk",
    "hash": "The processors: hashing",
    "encode": "The processors: encoding",
    "put": "The link, or the store behind it",
    "wait": "Waiting: for memory that is in flight, for the bandwidth limit, or for the trainer",
}
