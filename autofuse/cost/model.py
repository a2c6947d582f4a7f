"""The cost model: the backbone, corrected by whichever heads have been trained. Loads and saves; never pickles.

On disk a model is a folder: `arrays.npz` (plain numbers) and `card.json` (what they mean, where they come from, the
hash of the arrays). It ranks; it is never asked whether a schedule is legal.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.backbone import TERMS, Estimate, estimate
from autofuse.cost.device import Target
from autofuse.cost.features import FEATURE_NAMES, FEATURES_VERSION, Features
from autofuse.cost.geometry import Array
from autofuse.cost.heads import HEADS, PHYSICAL_INPUTS, TIME_INPUTS, Head, physical_matrix, time_matrix
from autofuse.cost.resources import Resources, by_rule, register_limit, with_values
from autofuse.cost.trees import Forest
from autofuse.errors import ModelError

FORMAT = 1
ARRAYS, CARD = "arrays.npz", "card.json"
SHIPPED = (Path("_data/models/cost"), Path("../datasets/models/cost"))
"""Where a model is looked for when none is named, beside the package: in a wheel, then in a checkout."""
MIN_REGISTERS = 16.0
RULED = 0.5
"""In octaves: a learned correction of shared memory below this is noise, the rule being exact where it holds."""
BACKBONE_ERROR = 0.35
"""Of a time that the backbone alone predicts; a trained model's card says better."""


@dataclass(frozen=True)
class Predictions:
    """Arrays, one entry a candidate. binding indexes backbone.TERMS. outside: how many inputs lie beyond what the
    model was trained on; there the learned corrections are shrunk (0 without a trained model)."""

    regs: Array
    spill_bytes: Array
    smem: Array
    occupancy: Array
    dram_bytes: Array
    time_us: Array
    binding: NDArray[np.int64]
    spill_probability: Array
    outside: NDArray[np.int64]

    def binding_name(self, row: int) -> str:
        return TERMS[int(self.binding[row])]

    def take(self, rows: NDArray[Any]) -> Predictions:
        return Predictions(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})


DOUBT = 1.0
"""With n inputs outside the range of training, 1 / (1 + n) of a learned correction is believed. Of 0.25, 1 and 4 the
one with the least regret on held-out shapes (6.1, 5.1 and 7.5 %); on held-out families all are between 18 and 21 %."""


@dataclass(frozen=True)
class CostModel:
    """forests: head name -> trees; empty is the backbone alone. low, high: range of each physical input in training;
    time_low, time_high: among what was timed, which is less than what was compiled."""

    forests: Mapping[str, Forest] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)
    low: NDArray[np.float32] | None = None
    high: NDArray[np.float32] | None = None
    time_low: NDArray[np.float32] | None = None
    time_high: NDArray[np.float32] | None = None
    source: str = "backbone only: no trained model found"

    @property
    def trained(self) -> bool:
        return bool(self.forests)

    @property
    def relative_error(self) -> float:
        """Typical error of a predicted time, of one: what two predictions must differ by before one is believed."""
        metrics = self.card.get("metrics", {})
        found = metrics.get("time_relative_error") if isinstance(metrics, Mapping) else None
        return float(found) if isinstance(found, int | float) else BACKBONE_ERROR

    def predict(self, features: Features, target: Target) -> Predictions:
        """Before compiling: resources are predicted too."""
        rule = by_rule(features, target)
        physical = physical_matrix(features, target, rule) if self.trained else None
        trust = _trust(physical, self.low, self.high, len(features))[1]
        have, probability = self._resources(features, target, rule, physical, trust)
        return self._timed(features, target, have, probability, physical)

    def predict_compiled(
        self, features: Features, target: Target, registers: Array, spill_bytes: Array, smem_bytes: Array
    ) -> Predictions:
        """After compiling: the compiler's own numbers take the place of the predicted ones."""
        physical = physical_matrix(features, target, by_rule(features, target)) if self.trained else None
        have = with_values(features, target, registers, spill_bytes, smem_bytes)
        spilled = (np.asarray(spill_bytes) > 0).astype(np.float64)
        return self._timed(features, target, have, spilled, physical)

    def _resources(
        self, features: Features, target: Target, rule: Resources, physical: NDArray[np.float32] | None, trust: Array
    ) -> tuple[Resources, Array]:
        registers, spills, smem = rule.registers, rule.spill_bytes, rule.smem_bytes
        probability = (spills > 0).astype(np.float64)
        if physical is None:
            return rule, probability
        if "registers" in self.forests:
            learned = registers + trust * self.forests["registers"].predict(physical)
            registers = np.clip(np.round(learned), MIN_REGISTERS, register_limit(features, target))
        if "smem" in self.forests:
            learned = trust * self.forests["smem"].predict(physical)
            smem = np.where(np.abs(learned) < RULED, smem, np.round(smem * 2**learned))
        if "spills" in self.forests:
            score = self.forests["spills"].predict(physical)
            probability = trust / (1 + np.exp(-score)) + (1 - trust) * probability
            spills = self._spill_size(physical, spills, probability)
        return with_values(features, target, registers, spills, smem), probability

    def _spill_size(self, physical: NDArray[np.float32], rule: Array, probability: Array) -> Array:
        """Only of those that probably spill: the head has seen no others."""
        likely = probability > 0.5
        found = np.zeros(len(rule))
        if "spill_size" in self.forests and likely.any():
            found[likely] = 2 ** np.clip(self.forests["spill_size"].predict(physical[:, likely]), 0, 16) - 1
        else:
            found[likely] = np.maximum(rule[likely], 8.0)
        return found

    def _timed(
        self, features: Features, target: Target, have: Resources, probability: Array,
        physical: NDArray[np.float32] | None,
    ) -> Predictions:  # fmt: skip
        outside, trust = _trust(physical, self.time_low, self.time_high, len(features))
        found: Estimate = estimate(features, target, have)
        time = found.time_us
        if physical is not None and "time" in self.forests:
            learned = self.forests["time"].predict(time_matrix(physical, found))
            time = time * np.exp(trust * np.clip(learned, -2.0, 2.0))
        busy = have.resident * features["num_warps"] / target.max_warps_per_mp
        return Predictions(have.registers, have.spill_bytes, have.smem_bytes, busy, found.dram_bytes, time,
                           found.binding, probability, outside)  # fmt: skip

    # --- files ---

    def save(self, folder: Path) -> None:
        """Writes the arrays, then the card that vouches for them. Raises ModelError where that cannot be done."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, forest in self.forests.items():
            arrays |= forest.arrays(name)
        if self.low is not None and self.high is not None:
            arrays |= {"range.low": self.low, "range.high": self.high}
        if self.time_low is not None and self.time_high is not None:
            arrays |= {"range.time_low": self.time_low, "range.time_high": self.time_high}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        card = dict(self.card) | schema() | {
            "heads": sorted(self.forests), "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
        }  # fmt: skip
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ARRAYS).write_bytes(buffer.getvalue())
            (folder / CARD).write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")
        except OSError as error:
            raise ModelError(f"cost model {folder} cannot be written ({error.strerror}): name a folder") from error

    @staticmethod
    def load(path: Path | None = None) -> CostModel:
        """The model in a folder; without one, the shipped model, and without that the backbone alone.

        Raises ModelError when a named or shipped model is truncated, changed, or made for other features.
        """
        if path is not None:
            return _read(path)
        package = Path(__file__).resolve().parent.parent
        for place in SHIPPED:
            if (package / place / CARD).exists():
                return _read((package / place).resolve())
        return CostModel()


def schema() -> dict[str, Any]:
    """What a model's card must agree on with this version to be read."""
    return {
        "format": FORMAT, "features_version": FEATURES_VERSION, "features": list(FEATURE_NAMES),
        "physical_inputs": list(PHYSICAL_INPUTS), "time_inputs": list(TIME_INPUTS),
        "units": {head.name: head.unit for head in HEADS},
    }  # fmt: skip


def _read(folder: Path) -> CostModel:
    remedy = "train one with `autofuse model train`"
    try:
        card = json.loads((folder / CARD).read_text())
        data = (folder / ARRAYS).read_bytes()
    except (OSError, ValueError) as error:
        raise ModelError(f"cost model {folder} cannot be read ({error}); {remedy}") from error
    if not isinstance(card, dict):
        raise ModelError(f"cost model {folder}: card.json is no object; {remedy}")
    if card.get("sha256") != hashlib.sha256(data).hexdigest():
        raise ModelError(f"cost model {folder}: {ARRAYS} is truncated or was changed after it was saved; {remedy}")
    differs = [name for name, value in schema().items() if card.get(name) != value]
    if differs:
        raise ModelError(f"cost model {folder} was made for another version ({', '.join(differs)} differ); {remedy}")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ModelError(f"cost model {folder}: {ARRAYS} cannot be read ({error}); {remedy}") from error
    by_name: dict[str, Head] = {head.name: head for head in HEADS}
    names = card.get("heads")
    if not isinstance(names, list) or not set(names) <= set(by_name):
        raise ModelError(f"cost model {folder}: unknown heads {names!r}; {remedy}")
    forests = {name: Forest.from_arrays(name, arrays, len(by_name[name].inputs)) for name in names}
    low, high = arrays.get("range.low"), arrays.get("range.high")
    if any(edge is None or edge.shape != (len(PHYSICAL_INPUTS),) for edge in (low, high)):
        raise ModelError(f"cost model {folder}: ranges of the inputs are missing; {remedy}")
    timed = (arrays.get("range.time_low"), arrays.get("range.time_high"))
    if "time" in forests and any(edge is None or edge.shape != (len(PHYSICAL_INPUTS),) for edge in timed):
        raise ModelError(f"cost model {folder}: ranges of the time head's inputs are missing; {remedy}")
    return CostModel(forests, card, low, high, *timed, str(folder))


def _trust(
    physical: NDArray[np.float32] | None,
    lowest: NDArray[np.float32] | None,
    highest: NDArray[np.float32] | None,
    n: int,
) -> tuple[NDArray[np.int64], Array]:
    """How many inputs lie outside the range of training, and how much of a learned correction is believed."""
    if physical is None or lowest is None or highest is None:
        return np.zeros(n, dtype=np.int64), np.ones(n)
    outside = np.zeros(n, dtype=np.int64)
    for row, low, high in zip(physical, lowest, highest, strict=True):
        outside += (row < low) | (row > high)
    return outside, 1 / (1 + DOUBT * outside)
