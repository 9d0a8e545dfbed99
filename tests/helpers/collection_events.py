"""What can happen in a history, and at which moments actors are stopped (collection_world.py)."""

from __future__ import annotations

from hypothesis import strategies as st
from toy_saves import HOUR_NS, SHARES

GRACE_NS = 24 * HOUR_NS

PUSHES = st.tuples(st.just("push"), st.integers(0, len(SHARES) - 1))
ACTIONS = st.one_of(
    PUSHES,
    st.tuples(st.just("collect"), st.sampled_from(["C1", "C2"]), st.sampled_from([0, GRACE_NS]), st.booleans()),
    st.sampled_from([("push", 4), ("pull",)]),  # the first uses chunks of an older step again
)
SCRUBS = st.tuples(st.just("scrub"), st.sampled_from("ABE"), st.sampled_from([0.5, 1.0]))
COLLECTS = st.sampled_from(["list", "sweep", "delete"])
MOMENTS = st.sampled_from([None, "list", "sweep", "delete", "parts", "ready", "commits", "chunks"])
SEEN = st.sampled_from(["get run/chunks", "put_new run/chunks", "list run/gc", "put_new run/bad", "delete run/bad"])
"""At these a scrub relies on what it has seen a moment ago."""

HARMS = st.sampled_from(["flipped", "truncated", "lost"])
