from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from autofuse.cost.device import TARGETS, from_properties, load_ceilings, resolve, save_ceilings
from autofuse.errors import ModelError, UnknownTarget


def test_unknown_names_list_the_known_ones() -> None:
    for name in ("h900", "cuda:x", "cudax", ""):
        with pytest.raises(UnknownTarget, match="h200"):
            resolve(name)


def test_auto_without_a_gpu_says_what_to_do() -> None:
    import torch

    if torch.cuda.is_available():
        assert resolve("auto").live == 0
    else:
        with pytest.raises(UnknownTarget, match="name a target"):
            resolve("auto")


def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnknownTarget, match=r"cuda:99.*--target h200"):
        resolve("cuda:99")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UnknownTarget, match=r"cuda:99.*this machine has cuda:0, cuda:1.*--target h200"):
        resolve("cuda:99")


def test_bandwidth_lies_between_its_ceilings() -> None:
    target = resolve("h200")
    assert float(target.bytes_per_us(1.0, 1.0)) == target.copy_bytes_per_us
    assert float(target.bytes_per_us(1.0, 0.0)) == target.read_bytes_per_us
    assert float(target.bytes_per_us(0.0, 1.0)) == target.write_bytes_per_us
    assert np.isfinite(target.bytes_per_us(np.zeros(2), np.zeros(2))).all()


def test_measured_ceilings_replace_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "ceilings.json"
    save_ceilings(file, "gpu", {"copy_bytes_per_us": 4.1e6})
    target = resolve("h200", file)
    assert target.copy_bytes_per_us == 4.1e6
    assert target.measured
    assert target.arch == 90


@pytest.mark.parametrize("text", ["", "{", "[]", '{"ceilings": {"copy_bytes_per_us": -1}}', '{"ceilings": {"arch": 3}}',
                                  '{"ceilings": {"launch_us": NaN}}'])  # fmt: skip
def test_bad_ceilings_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ceilings.json"
    file.write_text(text)
    with pytest.raises(ModelError, match="ceilings"):
        load_ceilings(file)


def test_live_properties_keep_their_own_limits() -> None:
    facts = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=120, L2_cache_size=1 << 20)
    found = from_properties(facts, 1)
    assert (found.name, found.multiprocessors, found.l2_bytes, found.live) == ("h200", 120, 1 << 20, 1)
    other = from_properties(SimpleNamespace(name="NVIDIA L99", major=8, minor=9, multi_processor_count=54))
    assert other.name == "nvidia-l99"
    assert other.arch == 89
    assert other.tensor16_flops_per_us < TARGETS["h200"].tensor16_flops_per_us
