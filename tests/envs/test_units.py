"""Units are read exactly, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds
from tests.refusal import refusal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16GiB", 17_179_869_184.0),
        ("141GB", 141e9),
        ("512 MB", 512e6),
        ("1.5KiB", 1536.0),
        ("40B", 40.0),
        ("7", 7.0),
        (1024, 1024.0),
        (2.5, 2.5),
    ],
)
def test_sizes_are_read_as_bytes(text: str | float, expected: float) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("25Gbps", 3.125e9),
        ("25 Gb/s", 3.125e9),
        ("25Gbit/s", 3.125e9),
        ("300GB/s", 300e9),
        ("1e9B/s", 1e9),
        (125.0, 125.0),
    ],
)
def test_rates_are_read_as_bytes_per_second(text: str | float, expected: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(expected, rel=1e-15)


def test_bits_and_bytes_per_second_differ_by_eight() -> None:
    assert parse_bandwidth("8Gb/s") == parse_bandwidth("1GB/s")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5us", 5e-6), ("5 µs", 5e-6), ("1.5 ms", 1.5e-3), ("3ns", 3e-9), ("2s", 2.0), (0.25, 0.25)],
)
def test_times_are_read_as_seconds(text: str | float, expected: float) -> None:
    assert parse_seconds(text) == pytest.approx(expected, rel=1e-15)


def test_speeds_are_read_as_flop_per_second() -> None:
    assert parse_flops("15.7TFLOP/s") == pytest.approx(15.7e12)
    assert parse_flops("2 PFLOPS") == 2e15


@pytest.mark.parametrize("text", ["5 parsecs", "GiB", "", "-1B", "nan", "inf", "1.2.3GB", "True"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with refusal("size such as 16GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["25GB", "25MBps", "5us", "fast"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with refusal("rate such as 25Gbps"):
        parse_bandwidth(text)


@pytest.mark.parametrize("text", ["1min", "5GB", "us"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with refusal("time such as 5us"):
        parse_seconds(text)


@given(st.floats(min_value=1e-12, max_value=1e18))
def test_plain_numbers_stand_for_themselves(number: float) -> None:
    assert parse_bytes(number) == parse_seconds(number) == parse_bandwidth(str(number)) == number
