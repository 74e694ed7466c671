"""Rates of network links: how they are written and shown."""

from __future__ import annotations

import pytest
from refusal import refused

from gallery_lib.cluster import link_rate


@pytest.mark.parametrize(
    ("text", "rate", "shown"),
    [
        ("1gbit", 10**9, "1 Gbit/s"),
        ("2.5gbit", 2_500_000_000, "2.5 Gbit/s"),
        ("100mbit", 10**8, "100 Mbit/s"),
        ("50Mbit", 5 * 10**7, "50 Mbit/s"),
        ("800 kbit", 800_000, "800 Kbit/s"),
    ],
)
def test_a_rate_is_a_number_with_its_unit(text: str, rate: int, shown: str) -> None:
    assert link_rate.bits_per_second(text) == rate
    assert link_rate.shown(rate) == shown


@pytest.mark.parametrize(
    "text", ["", "fast", "100", "1gb", "-1gbit", "1e3mbit", "1gbit/s", "nangbit"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with refused("rate", repr(text), "100mbit"):
        link_rate.bits_per_second(text)


@pytest.mark.parametrize("text", ["0mbit", "99kbit", "101gbit"])
def test_a_rate_that_no_link_can_have_is_refused(text: str) -> None:
    with refused("rate", repr(text), "100kbit", "100gbit"):
        link_rate.bits_per_second(text)


def test_a_burst_is_a_millisecond_of_the_rate_and_at_least_ten_packets() -> None:
    assert link_rate.burst_bytes(10**9) == 125_000
    assert link_rate.burst_bytes(10**6) >= 10 * 1514


@pytest.mark.parametrize("rate", [10**5, 10**7, 10**8, 5 * 10**8, 10**9, 10**10])
def test_no_packet_is_larger_than_the_burst(rate: int) -> None:
    assert 10_000 < link_rate.largest_packet_bytes(rate) < link_rate.burst_bytes(rate)
    assert link_rate.largest_packet_bytes(rate) <= 2**16
