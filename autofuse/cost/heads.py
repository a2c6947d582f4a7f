"""What each learned head predicts, from which columns, and how its raw score becomes the quantity. Data and transforms
only: fitting is in training, files are in model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.backbone import TERMS, Estimate
from autofuse.cost.device import Target
from autofuse.cost.features import FEATURE_NAMES, Features
from autofuse.cost.geometry import Array
from autofuse.cost.resources import Resources, register_limit, wanted_registers

RULE_COLUMNS = (
    "arch",
    "rule_registers",
    "rule_excess_registers",
    "rule_spill_bytes",
    "rule_smem_bytes",
    "rule_resident",
)
TIME_COLUMNS = ("registers", "spill_bytes", "resident", "backbone_us", *(f"share_{name}" for name in TERMS))
PHYSICAL_INPUTS: tuple[str, ...] = (*FEATURE_NAMES, *RULE_COLUMNS)
TIME_INPUTS: tuple[str, ...] = (*PHYSICAL_INPUTS, *TIME_COLUMNS)


@dataclass(frozen=True, slots=True)
class Head:
    """unit: of the quantity. kind: "residual" adds to the rule, "log_residual" multiplies the backbone, "classifier"
    gives a raw score, "size" a logarithm of bytes. inputs: which columns it reads."""

    name: str
    unit: str
    kind: str
    inputs: tuple[str, ...]


HEADS: tuple[Head, ...] = (
    Head("registers", "registers a thread", "residual", PHYSICAL_INPUTS),
    Head("spills", "log-odds of any spill", "classifier", PHYSICAL_INPUTS),
    Head("spill_size", "log2(1 + spilled bytes a thread), given a spill", "size", PHYSICAL_INPUTS),
    Head("smem", "log2 of compiled over ruled shared memory", "log_residual", PHYSICAL_INPUTS),
    Head("time", "log(time / backbone)", "log_residual", TIME_INPUTS),
)


def physical_matrix(features: Features, target: Target, rule: Resources) -> NDArray[np.float32]:
    """One row an input of PHYSICAL_INPUTS."""
    wanted = wanted_registers(features)
    excess = wanted - register_limit(features, target)
    ruled = (
        np.full(len(features), float(target.arch)),
        rule.registers,
        excess,
        rule.spill_bytes,
        rule.smem_bytes,
        rule.resident,
    )
    return np.stack([*(features[name] for name in FEATURE_NAMES), *ruled]).astype(np.float32)


def time_matrix(physical: NDArray[np.float32], found: Estimate) -> NDArray[np.float32]:
    """One row an input of TIME_INPUTS; terms as shares of the backbone's time, so that sizes do not matter."""
    have = found.resources
    backbone = np.minimum(found.time_us, 1e9)
    rows: list[Array] = [have.registers, have.spill_bytes, have.resident, backbone]
    rows += [found.terms[name] / backbone for name in TERMS]
    return np.concatenate([physical, np.stack(rows).astype(np.float32)])
