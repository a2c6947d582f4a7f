"""Fake CUDA tensors in a torch that is built without CUDA.

torch's own bindings (`x[0]`, `~x`, `x.copy_(y)`, `x.contiguous()`, ...) set a tensor's device before they do anything
else, and a build without CUDA has nothing to set it with: they raise, and where raising is not allowed they abort the
process. In a build with CUDA but without a GPU, torch gives CUDA a guard that does nothing as soon as there are fake
tensors; this has it do so in a build without.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CUDA, LAZY, DEVICES = 1, 17, 20
"""Places in the registry of device guards (c10::DeviceType)."""


@contextmanager
def guard_without_cuda() -> Iterator[None]:
    """Gives CUDA a device guard that does nothing for the time being; changes nothing where torch has one for CUDA."""
    import torch

    guards = _registry()
    if guards is None or guards[CUDA] or not guards[LAZY]:
        yield
        return
    guards[CUDA] = guards[LAZY]  # counts no devices, as CUDA's own does where there is no GPU: torch puts another in
    torch._C._ensureCUDADeviceGuardSet()
    if guards[CUDA] == guards[LAZY]:
        guards[CUDA] = None
    try:
        yield
    finally:
        guards[CUDA] = None


def _registry() -> Any:
    """libc10's table of device guards (one pointer a device type); None where torch keeps none by this name."""
    import torch

    for name in ("libc10.so", "libc10.dylib"):
        try:
            library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
            return (ctypes.c_void_p * DEVICES).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
        except (OSError, ValueError):  # no such file; no such symbol
            continue
    return None
