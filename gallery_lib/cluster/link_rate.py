"""Rates of links: their notation, and the burst that a shaped link lets through.

Shaping is a token bucket (tc's tbf). Two sizes matter beside the rate:

- *burst*, the bytes that pass at once after a pause. It must hold what the rate brings between two
  runs of the kernel's timer, or the rate is not reached on a busy machine; beyond that it makes
  short messages too fast. We take a millisecond of the rate, and at least ten packets. The kernel
  hands packets of up to 64 KiB to a card, and tbf cuts those that the burst does not hold, which
  costs a part of the rate. So such packets are made smaller on slow links.
- *latency*, the longest wait of a packet in the queue before it is dropped: 50 ms, the buffer of a
  generous switch.
"""

from __future__ import annotations

import re

from gallery_lib.errors import InputError

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SLOWEST, _FASTEST = 10**5, 10**11
_LATENCY_MILLISECONDS = 50
_BURST_SECONDS = 1e-3
_SMALLEST_BURST_BYTES = 16384
_LARGEST_PACKET_BYTES = 65536


def bits_per_second(text: str) -> int:
    """Return the rate that a text like `1gbit` or `2.5mbit` stands for, in bits per second.

    Raises:
        InputError: for anything else, and for rates outside 100kbit to 100gbit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(kbit|mbit|gbit)", str(text).lower(), re.ASCII)
    if not match:
        raise InputError(
            f"rate={text!r} must be a number with kbit, mbit or gbit behind it, "
            "in bits per second: 100mbit, say.",
            parameter="rate",
        )
    rate = round(float(match[1]) * _UNITS[match[2]])
    if not _SLOWEST <= rate <= _FASTEST:
        raise InputError(f"rate={text!r} must be between 100kbit and 100gbit.", parameter="rate")
    return rate


def shown(rate: int) -> str:
    """Return a rate in bits per second as text, for instance `1 Gbit/s`."""
    unit = max((unit for unit in _UNITS if _UNITS[unit] <= rate), key=_UNITS.__getitem__)
    return f"{rate / _UNITS[unit]:g} {unit.capitalize()}/s"


def burst_bytes(rate: int) -> int:
    """Return the token bucket's size for a link of `rate` bits per second."""
    return max(round(rate / 8 * _BURST_SECONDS), _SMALLEST_BURST_BYTES)


def largest_packet_bytes(rate: int) -> int:
    """Return the largest packet that the kernel may hand to a card of `rate` bits per second."""
    return min(_LARGEST_PACKET_BYTES, burst_bytes(rate) * 9 // 10)


def tbf(rate: int) -> str:
    """Return tc's words for a queue of `rate` bits per second."""
    return f"tbf rate {rate}bit burst {burst_bytes(rate)}b latency {_LATENCY_MILLISECONDS}ms"
