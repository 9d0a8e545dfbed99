"""The value of a metric: where it is looked up, and what is no value."""

import json

import pytest

from ckptsync.disk.scan import list_step
from ckptsync.sync.metrics import metric_files, metric_of_listing, value_in

HISTORY = [{"step": 10, "loss": 3.0}, {"step": 20, "loss": 2.0, "val/acc": 0.5}, {"step": 30, "loss": 1.0}, "junk"]


@pytest.mark.parametrize(
    ("document", "metric", "value"),
    [
        ({"acc": 0.5}, "acc", 0.5),
        ({"acc": 7}, "acc", 7.0),
        ({"val/acc": 1, "val": {"acc": 2}}, "val/acc", 1.0),
        ({"val": {"acc": 2}}, "val/acc", 2.0),
        ({"acc": 0.5}, "metrics.json:acc", 0.5),
        ({"best_metric": 4, "log_history": HISTORY}, "trainer_state.json:best_metric", 4.0),
        ({"log_history": HISTORY}, "loss", 2.0),
        ({"log_history": HISTORY}, "val/acc", 0.5),
        ({"log_history": [{"loss": 9}]}, "loss", 9.0),
        ({"log_history": HISTORY}, "other", None),
        ({"acc": "0.5"}, "acc", None),
        ({"acc": True}, "acc", None),
        ({"acc": None}, "acc", None),
        ({"acc": 10**400}, "acc", None),
        ({"log_history": 3}, "acc", None),
        ([1], "acc", None),
    ],
)
def test_the_value_up_to_step_20(document, metric, value):
    assert value_in(json.dumps(document).encode(), metric, 20) == value


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"acc": NaN}', b'{"acc": Infinity}', b"[" * 100_000])
def test_what_is_no_json_has_no_value(data):
    assert value_in(data, "acc", 20) is None


def test_files_are_looked_at_in_order_until_one_tells(tmp_path):
    def write(name, document):
        (tmp_path / name).write_text(json.dumps(document))

    write("trainer_state.json", {"acc": 1, "only": 5})
    write("metrics.json", {"acc": 2})
    write("own.json", {"acc": 3})
    listing = list_step(str(tmp_path))
    assert metric_files("acc", listing.files) == ["metrics.json", "trainer_state.json"]
    assert metric_of_listing(listing, "acc", 20) == 2.0
    assert metric_of_listing(listing, "only", 20) == 5.0
    assert metric_of_listing(listing, "own.json:acc", 20) == 3.0
    assert metric_of_listing(listing, "gone.json:acc", 20) is None
    (tmp_path / "metrics.json").unlink()
    assert metric_of_listing(listing, "acc", 20) == 1.0
