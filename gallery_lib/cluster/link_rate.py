"""Rates of links: how they are written, and how large a burst a shaped link lets through.

Shaping is a token bucket (tc's tbf). Two sizes matter beside the rate:

- *burst*, bytes that pass at once after a pause. It must hold what the rate brings between two runs of the kernel's
  timer, or the rate is not reached on a busy machine; everything beyond that makes short messages too fast. We take
  what the rate brings in a millisecond, and at least ten packets.
  The kernel hands packets of up to 64 KiB to a card and lets it cut them. Those that the burst does not hold tbf cuts itself, which
  takes a multiple of the processor time and a part of the rate; so on slow links they are made smaller.
- *latency*, the longest time that a packet waits in the queue before it is dropped. 50 ms are the buffer of a generous
  switch: TCP fills the link, and several hosts that send to one do not wait for its timeouts all the time.
"""

from __future__ import annotations

import re

from gallery_lib.errors import InputError

LATENCY_MILLISECONDS = 50

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SLOWEST, _FASTEST = 10**5, 10**11
_BURST_SECONDS = 1e-3
_SMALLEST_BURST_BYTES = 16384
_LARGEST_PACKET_BYTES = 65536


def bits_per_second(text: str) -> int:
    """The rate that `1gbit` or `2.5mbit` stands for. Raises InputError for anything else, and out of 100kbit to 100gbit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(kbit|mbit|gbit)", str(text).strip().lower())
    if not found:
        raise InputError(
            f"rate={text!r} must be a number with kbit, mbit or gbit behind it, in bits per second: 100mbit, say."
        )
    rate = round(float(found[1]) * _UNITS[found[2]])
    if not _SLOWEST <= rate <= _FASTEST:
        raise InputError(f"rate={text!r} must be between 100kbit and 100gbit.")
    return rate


def shown(rate: int) -> str:
    """`1 Gbit/s` for a rate in bits per second."""
    unit, size = max(
        ((unit, size) for unit, size in _UNITS.items() if size <= rate), key=lambda pair: pair[1]
    )
    return f"{rate / size:g} {unit.capitalize()}/s"


def burst_bytes(rate: int) -> int:
    """The bucket of a link of `rate` bits per second."""
    return max(round(rate / 8 * _BURST_SECONDS), _SMALLEST_BURST_BYTES)


def largest_packet_bytes(rate: int) -> int:
    """What the kernel may hand in one piece to a card of `rate` bits per second."""
    return min(_LARGEST_PACKET_BYTES, burst_bytes(rate) * 9 // 10)


def tbf(rate: int) -> str:
    """The words of tc for a queue of `rate` bits per second."""
    return f"tbf rate {rate}bit burst {burst_bytes(rate)}b latency {LATENCY_MILLISECONDS}ms"
