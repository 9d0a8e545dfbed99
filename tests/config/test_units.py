from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptsync.units import FreeSpace, format_duration, parse_duration, parse_free_space, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0),
        ("30m", 1800.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("2d", 172800.0),
        ("1w2d", 777600.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("1s500ms", 1.5),
        (" 0s ", 0.0),
    ],
)
def test_durations_in_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("value", ["30", 30, 2.5, True, "-5", "1.5", None])
def test_a_bare_number_is_no_duration_and_the_remedy_is_named(value):
    with pytest.raises(ValueError, match="has no unit: write it like"):
        parse_duration(value)


@pytest.mark.parametrize(
    "text", ["", "s", "10", "10x", "10 s x", "-1s", "1e3s", "10s10s", "10s1h", "1,5h", "\u0661s", "1h30"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match=r"not a duration|no unit"):
        parse_duration(text)


def test_an_absurd_duration_is_refused_instead_of_overflowing():
    with pytest.raises(ValueError, match="hundred years"):
        parse_duration("9" * 400 + "w")


@given(st.integers(0, 50), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_duration_is_the_sum_of_its_parts(days, hours, minutes, seconds):
    assert parse_duration(f"{days}d{hours}h{minutes}m{seconds}s") == ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("512B", 512),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("16MiB", 16 * 1024**2),
        ("500MB", 500_000_000),
        ("1.5GiB", 3 * 512 * 1024**2),
        ("2 TB", 2 * 10**12),
        ("1PiB", 1024**5),
    ],
)
def test_sizes_in_bytes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "value", ["16", 16, "16M", "16mb", "16Mb", "MiB", "-1MB", "1e3MB", "16MB/s", "10%", "99999999PB"]
)
def test_what_is_no_size_is_refused(value):
    with pytest.raises(ValueError, match=r"not a size|no unit|any disk"):
        parse_size(value)


@given(st.integers(0, 2**53), st.sampled_from(["", "k", "Ki", "M", "Mi"]))
def test_a_whole_number_of_units_is_exact(count, prefix):
    factor = {"": 1, "k": 1000, "Ki": 1024, "M": 10**6, "Mi": 1024**2}[prefix]
    if count * factor < 2**63:
        assert parse_size(f"{count}{prefix}B") == pytest.approx(count * factor, rel=1e-15)


def test_rates_in_bytes_per_second():
    assert parse_rate("500MB/s") == 500_000_000
    assert parse_rate("1 GiB / s") == 1024**3


@pytest.mark.parametrize("value", ["500MB", 500, "500", "0B/s", "500MB/h", "500Mb/s", "/s", "MB/s"])
def test_what_is_no_rate_is_refused(value):
    with pytest.raises(ValueError, match=r"not a rate|no unit|never finish"):
        parse_rate(value)


def test_free_space_is_a_share_of_the_disk_or_a_size():
    assert parse_free_space("10%") == FreeSpace(fraction=0.1)
    assert parse_free_space("500GB") == FreeSpace(size=5 * 10**11)
    assert parse_free_space("0B") == FreeSpace()


@pytest.mark.parametrize("value", ["100%", "250%", "10", 10, 0.1, "ten %", "-1%", "16M"])
def test_what_is_no_free_space_is_refused(value):
    with pytest.raises(ValueError, match=r"leaves no room|neither|no unit"):
        parse_free_space(value)


@pytest.mark.parametrize("parse", [parse_duration, parse_size, parse_rate, parse_free_space])
@given(text=st.text(max_size=12))
def test_any_text_is_a_value_or_a_value_error(parse, text):
    with contextlib.suppress(ValueError):
        parse(text)


@given(st.integers(0, 10**12))
def test_a_duration_survives_being_written_and_read(milliseconds):
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)
