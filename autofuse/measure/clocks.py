"""Clocks, power and throttling of the card, read and never set. NVML where pynvml is installed, else nvidia-smi."""

from __future__ import annotations

import contextlib
import subprocess
from typing import Any

from autofuse.measure.records import Clocks

_IDLE = 0x1
"""NVML's reason bit "GPU idle": no throttling."""
_FIELDS = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_throttle_reasons.active"


def read(device: str) -> Clocks:
    """Of the current CUDA device; all None where nothing answers."""
    if device == "cpu":
        return Clocks()
    uuid = _uuid()
    with contextlib.suppress(ImportError):
        import pynvml  # pyright: ignore[reportMissingImports]

        with contextlib.suppress(pynvml.NVMLError):
            return _by_nvml(pynvml, uuid)
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        return _by_smi(uuid)
    return Clocks()


def _uuid() -> str:
    import torch

    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"


def _by_nvml(nvml: Any, uuid: str) -> Clocks:
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    return Clocks(
        nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & ~_IDLE,
    )


def _by_smi(uuid: str) -> Clocks:
    report = subprocess.run(
        ["nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits", "-i", uuid],
        capture_output=True, text=True, timeout=10, check=True,
    )  # fmt: skip
    sm, memory, power, temperature, reasons = (part.strip() for part in report.stdout.strip().split(","))
    return Clocks(int(sm), int(memory), float(power), int(temperature), int(reasons, 16) & ~_IDLE)


def describe_device(device: str) -> dict[str, Any]:
    """Name and versions, for the environment key of plans and results."""
    import torch
    import triton

    facts: dict[str, Any] = {"device": device, "torch": torch.__version__, "triton": triton.__version__}
    if device == "cpu":
        return facts | {"name": "interpreter", "arch": 0, "cuda": None}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return facts | {
        "name": properties.name, "arch": properties.major * 10 + properties.minor, "cuda": torch.version.cuda,
        "multiprocessors": properties.multi_processor_count, "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
    }  # fmt: skip
