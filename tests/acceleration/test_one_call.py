"""accelerate() in one call: placement, state-dict keys, no sharding, refusal of a second call."""

import copy
import subprocess
import sys

import pytest
import torch
from refusal import refused
from small_models import image_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler
from gallery_lib.system.processes import RENDEZVOUS_VARIABLE


def test_the_model_has_a_device_and_plain_keys_and_the_loader_yields_batches_there():
    plain = image_model()
    keys = list(plain.state_dict())
    data = TensorDataset(torch.randn(20, 3, 8, 8), torch.arange(20))
    accelerated, batches = accelerate(plain, DataLoader(data, batch_size=4, shuffle=True))
    assert accelerated.device == torch.device("cpu")
    assert list(accelerated.state_dict()) == keys
    assert len(batches) == 5
    assert sorted(i for _, labels in batches for i in labels.tolist()) == list(range(20))


def test_a_misspelt_option_is_python_s_error_and_an_impossible_value_is_refused():
    config = Config()
    with pytest.raises(AttributeError, match="fp61"):
        config.compute.fp61 = True
    config.loader = 3
    with refused("loader", "loader=3", "Loader"):
        accelerate(nn.Linear(2, 2), config)


@pytest.mark.parametrize(
    ("part", "name", "value", "wanted"),
    [
        ("compute", "bf16", 1, "true or false"),
        ("compute", "bf16", None, "true or false"),
        ("loader", "prefetch", -1, "between 0 and"),
        ("loader", "prefetch", 2.5, "a whole number"),
        ("memory", "layout", "nhwc", "contiguous or channels_last"),
        ("comm", "wire", True, "exact or bf16"),
        ("comm", "bucket_mb", float("inf"), "a number"),
        ("compiler", "without", ("vector_mask",), "`vector_masks`"),
    ],
)
def test_a_value_of_another_type_or_range_is_refused(part, name, value, wanted):
    config = Config()
    setattr(getattr(config, part), name, value)
    with refused(name, wanted):
        accelerate(nn.Linear(2, 2), config)


def test_synchronized_batch_norm_on_one_process_is_batch_norm_for_this_model_and_any_other():
    torch.manual_seed(0)
    other = nn.SyncBatchNorm.convert_sync_batchnorm(
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    )
    ours, _ = accelerate(copy.deepcopy(other), None, Config.plain())
    x = torch.randn(6, 4)
    assert torch.equal(ours(x), other(x))
    # A process group can still be created.
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("first", ["synchronized", "plain"])
def test_synchronized_batch_norm_works_beside_another_model_of_torchruns_one_process(
    first, monkeypatch, tmp_path
):
    one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in {**one, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(RENDEZVOUS_VARIABLE, str(tmp_path / "meeting"))
    models = {"plain": nn.Linear(4, 8), "synchronized": nn.SyncBatchNorm(8)}
    for name in sorted(models, key=first.__ne__):
        accelerate(models[name], Config.plain())
    out = models["synchronized"](models["plain"](torch.randn(6, 4)))
    assert out.mean(0).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (lambda: nn.DataParallel(nn.Linear(3, 1)), "DataParallel"),
        (lambda: nn.Sequential(nn.DataParallel(nn.Linear(3, 1))), "DataParallel"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight has no values"),
    ],
    ids=["distributed", "distributed inside", "meta"],
)
def test_a_model_that_is_distributed_already_or_has_no_values_is_refused(other, word):
    with refused("model", word) as refusal:
        accelerate(other(), None, Config.plain())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("build", [Config, Config.plain])
def test_a_second_call_on_the_same_model_is_refused(build):
    config = build()
    config.compiler.enabled = False
    once, _ = accelerate(image_model(), None, config)
    assert once.device == torch.device("cpu") and not torch.distributed.is_initialized()
    assert (techniques(once) == {}) is (build == Config.plain)
    with once.no_sync():  # docs/guides/own_code.md: with one process, too
        once(torch.randn(2, 3, 8, 8)).sum().backward()
    assert once[0].weight.grad is not None
    with refused("model", "twice"):
        accelerate(once, None, config)


def test_a_model_of_buffers_only_passes_through():
    norm, _ = accelerate(nn.BatchNorm1d(2, affine=False), None, Config.plain())
    assert norm(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).sign().tolist() == [[-1, 0], [1, 0]]


def test_float16_on_a_cpu_is_said_to_be_fp32():
    config = Config.plain()
    config.compute.fp16 = True
    with pytest.warns(UserWarning, match="float16 was asked for, and this run is on the CPU"):
        changed, _ = accelerate(image_model(), None, config)
    assert techniques(changed)["precision"].startswith("fp32")


@pytest.mark.parametrize("loader_of", [list, iter])
def test_one_line_says_what_was_done_and_no_schedule_is_too_long_on_one_process(loader_of, capsys):
    class Own(torch.optim.SGD):
        pass

    plain, config = image_model(), Config()
    optimizer = Own(plain.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8)
    config.compiler.enabled = False
    ours, *_ = accelerate(plain, loader_of([torch.ones(1)] * 8), optimizer, scheduler, config)
    assert "schedule" not in techniques(ours)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("accelerate(): Sequential on cpu; ")
    assert "Own is no class of torch.optim" in said


def test_an_unknown_compiler_backend_is_named():
    with pytest.raises(torch._dynamo.exc.InvalidBackend, match="inducter"):
        compile_model(image_model(), Compiler(backend="inducter"), torch.device("cpu"))


def test_importing_the_package_does_not_import_torch():
    modules = "gallery_lib.config, gallery_lib.cli.main, gallery_lib.report.communication"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_ctrl_c_is_left_to_the_system_before_anything_that_takes_time_is_imported():
    code = (
        "import signal, sys; before = set(sys.modules); import gallery_lib.__main__; "
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"typing", "re", "contextlib", "argparse"} & set(done.stdout.split())
