"""Weights as safetensors: the library that defines the format reads what is written."""

from __future__ import annotations

import json

import safetensors.torch
import torch

from gallery_lib.checkpoint import manifest, plain_weights

DTYPES = [getattr(torch, name) for name in plain_weights._NAMES]


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    result = {
        f"layers.{place}.weight": (10 * torch.rand(3, 5 + place)).to(dtype)
        for place, dtype in enumerate(DTYPES)
    }
    return result | {
        "a scalar": torch.tensor(2.5),
        "nothing": torch.empty(0, 4),
        "ü": torch.ones(1_500_000),
    }


def test_the_library_reads_every_dtype_name_and_size(tmp_path):
    written = weights()
    facts = plain_weights.write(tmp_path / "weights.safetensors", written)
    read = safetensors.torch.load_file(tmp_path / "weights.safetensors")
    assert read.keys() == written.keys()
    for name, tensor in written.items():
        assert read[name].dtype is tensor.dtype and read[name].shape == tensor.shape
        assert (
            read[name].view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()
            if (tensor.dim() and tensor.numel())
            else torch.equal(read[name], tensor)
        )
    assert facts == manifest.facts_of(tmp_path / "weights.safetensors")


def test_the_header_is_the_librarys(tmp_path):
    """Both files hold the same values at the same places."""
    written = {name: tensor for name, tensor in weights().items() if tensor.dim() == 2}
    plain_weights.write(tmp_path / "ours", written)
    safetensors.torch.save_file(written, tmp_path / "library", metadata={"format": "pt"})
    headers = []
    for name in ("ours", "library"):
        content = (tmp_path / name).read_bytes()
        length = int.from_bytes(content[:8], "little")
        assert length % 8 == 0
        headers.append(json.loads(content[8 : 8 + length]))
    ours, library = headers
    assert ours.keys() == library.keys()
    for name, tensor in written.items():
        assert ours[name]["dtype"] == library[name]["dtype"]
        assert ours[name]["data_offsets"][0] % tensor.element_size() == 0


def test_tied_weights_are_written_under_each_name(tmp_path):
    tensor = torch.randn(4, 4)
    plain_weights.write(tmp_path / "file", {"one": tensor, "other": tensor})
    read = safetensors.torch.load_file(tmp_path / "file")
    assert torch.equal(read["one"], tensor) and torch.equal(read["other"], tensor)
