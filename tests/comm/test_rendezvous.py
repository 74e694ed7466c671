"""Processes meet where nobody outside the machine can reach them."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_lib.comm import rendezvous

STORES = """
import sys
from gallery_lib.comm import rendezvous
rendezvous.listen_where_told()
import psutil, torch.distributed as dist
from torch.distributed.elastic.rendezvous import dynamic_rendezvous, static_tcp_rendezvous
stores = [
    dist.TCPStore("127.0.0.1", 0, is_master=True, multi_tenant=True),
    static_tcp_rendezvous.TCPStore("127.0.0.1", int(sys.argv[1]), 1, True, \
dist.default_pg_timeout, multi_tenant=True),
    dynamic_rendezvous.dist.TCPStore(host_name="localhost", port=0, is_master=True),
]
for store in stores:
    store.set("key", "value")
    assert dist.TCPStore("127.0.0.1", store.port, is_master=False).get("key") == b"value"
listening = {each.laddr.ip for each in psutil.Process().net_connections("inet") \
if each.status == "LISTEN"}
print(*sorted(listening))
"""


@pytest.mark.slow
def test_stores_listen_on_the_address_that_they_are_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", STORES, str(port)], capture_output=True, text=True, check=False
    )
    assert set(done.stdout.split()) <= {"127.0.0.1", "::1"} and done.stdout.split(), done.stderr


def test_a_run_on_one_host_meets_in_files_of_a_folder(tmp_path: Path) -> None:
    words = rendezvous.meeting_arguments(tmp_path)
    assert (
        f"--rdzv-endpoint={tmp_path}/torchrun-rendezvous" in words
        and "store_type=file" in " ".join(words)
    )


def test_an_interface_that_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert rendezvous.loopback_interface() == {"NCCL_SOCKET_IFNAME": "lo"}


def test_an_address_of_another_host_cannot_be_listened_on() -> None:
    with pytest.raises(OSError, match=r"[Aa]ssign"):
        rendezvous.listening_on("192.0.2.1", 0)
