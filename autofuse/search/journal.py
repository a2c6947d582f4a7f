"""What the search writes down, and what an earlier, broken-off run wrote: the one door between search and results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from autofuse.cost.device import Target
from autofuse.measure.records import Compiled, Timed
from autofuse.results.log import RunLog
from autofuse.results.records import Key, Measurement, Samples, config_digest
from autofuse.version import __version__

if TYPE_CHECKING:
    from autofuse.search.group import GroupSearch, Trial

STAGE = {
    "pruned_constraint": "constraint",
    "compiled": "compile",
    "duplicate": "compile",
    "pruned_resources": "resources",
    "verified": "verify",
    "timed": "time",
    "dropped": "time",
}


@dataclass
class Journal:
    """For one graph of a run. known: what the log holds of each group, by group_key and config_digest, whichever graph
    of whichever workload it was found in (nothing of it is done again).

    reference_us: the fixed reference kernel's time that ratios are turned back into microseconds with, so that times
    of different minutes compare; taken from the first race, or from the resumed log.
    """

    log: RunLog
    workload: str
    shape_json: str
    target: Target
    graph_key: str
    known: dict[tuple[str, str], Measurement] = field(default_factory=dict)
    reference_us: float = 0.0
    training: dict[Key, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = [
            m for (target, _), m in self.log.state.measurements.items() if target == self.target.name and usable(m)
        ]
        # Of several records the settled one, and of those this graph's own, comes last.
        found.sort(key=lambda m: (m.settled, m.graph_key == self.graph_key))
        self.known = {
            (m.group_key, m.config_digest): m
            for m in found
            if m.graph_key == self.graph_key or not m.status.startswith("verify_")
        }
        pairs = [m.time_us / m.time_ratio for m in self.known.values() if m.time_us and m.time_ratio]
        if pairs:
            self.reference_us = median(pairs)

    def microseconds(self, timed: Timed) -> float:
        if not self.reference_us and timed.reference_us:
            self.reference_us = median(timed.reference_us)
        return timed.ratio * self.reference_us if timed.ratio and self.reference_us else timed.median_us

    def recall(self, search: GroupSearch, trial: Trial) -> bool:
        """Takes over what was settled of this trial, or at least compiled, by an earlier run or for another graph.

        Numbers that were wrong elsewhere are checked again: without a GPU all groups of a wrong plan are blamed.
        """
        implementation, config, rewrites = identity(search, trial)
        found = self.known.get((search.key, config_digest(implementation, config, rewrites)))
        if found is None:
            return False
        trial.status, trial.detail, trial.time_us = found.status, found.detail, found.time_us
        trial.recalled, trial.written, trial.elsewhere = True, found.status, found.graph_key != self.graph_key
        if found.binary_sha:
            spills = found.n_spills or 0
            trial.compiled = Compiled("", "ok", found.n_regs or 0, spills, 4 * spills, found.smem_bytes or 0,
                                      found.binary_sha, seconds=found.compile_seconds or 0.0)  # fmt: skip
        if found.predicted_us is not None:
            trial.predicted_us = found.predicted_us
        return True

    def trial(self, search: GroupSearch, trial: Trial) -> None:
        """Write one trial down, unless it is there already as it stands."""
        if trial.written == trial.status and not trial.recalled:
            return
        record = self.measurement(search, trial)
        if trial.compiled is not None and search.pool is not None and not (trial.is_library or trial.elsewhere):
            self.training[record.key] = training_row(search, trial, record)
        if trial.recalled:
            return
        trial.written = trial.status
        self.log.record(record)
        if trial.timed is not None and trial.timed.samples_us:
            for series, times in (("race", trial.timed.samples_us), ("confirm", trial.timed.confirm_us)):
                if times:
                    self.log.record(
                        Samples(
                            record.run_id,
                            record.target,
                            record.graph_key,
                            record.group_key,
                            record.config_digest,
                            series,
                            times,
                            _paired(trial.timed, times, series),
                        )
                    )

    def measurement(self, search: GroupSearch, trial: Trial) -> Measurement:
        implementation, config, rewrites = identity(search, trial)
        compiled, verified, timed = trial.compiled, trial.verified, trial.timed
        facts: dict[str, Any] = {}
        if compiled is not None:
            facts |= {"n_regs": compiled.n_regs, "n_spills": compiled.n_spills, "smem_bytes": compiled.smem_bytes,
                      "binary_sha": compiled.binary_sha, "compile_seconds": compiled.seconds}  # fmt: skip
        if verified is not None:
            facts |= {"max_abs_err": verified.max_abs_err, "rms_err": verified.rms_err, "eager_err": verified.eager_err,
                      "tolerance": verified.tolerance}  # fmt: skip
        if trial.recording:
            facts["time_us"] = trial.time_us
        if timed is not None and trial.time_us is not None:
            facts |= {"time_us": trial.time_us, "time_ratio": timed.ratio, "n_samples": len(timed.samples_us)}
            if timed.clocks is not None:
                facts |= {
                    "sm_mhz": timed.clocks.sm_mhz,
                    "power_w": timed.clocks.power_w,
                    "throttle": timed.clocks.throttle,
                }
        if search.pool is not None and not trial.is_library:
            facts |= predicted(search, trial.position)
        if trial.occupancy is not None:
            facts["occupancy"] = trial.occupancy
        if trial.duplicate_of is not None and search.pool is not None:
            other = search.trials[trial.duplicate_of]
            facts["duplicate_of"] = config_digest(*identity(search, other))
        ops = search.group.ops
        return Measurement(
            self.log.run_id,
            self.workload,
            self.shape_json,
            self.target.name,
            self.graph_key,
            search.key,
            "_".join(dict.fromkeys((ops[0], ops[-1]))),
            ",".join(ops),
            implementation,
            json.dumps(config, separators=(",", ":")),
            config_digest(implementation, config, rewrites),
            trial.status,
            search.family,
            rewrites,
            STAGE.get(trial.status, "compile" if trial.status.startswith("compile") else "verify"),
            "",
            trial.detail[:500],
            trial.propensity,
            trial.predicted_us,
            timing="recorded" if trial.recording else "measured" if trial.time_us is not None else "predicted",
            **facts,
        )

    def flush(self) -> None:
        self.log.flush()


def usable(found: Measurement) -> bool:
    """Is something known that need not be found out again?"""
    return found.settled or found.status == "compiled"


def identity(search: GroupSearch, trial: Trial) -> tuple[str, Mapping[str, Any], str]:
    """(implementation, config, rewrites): what names a candidate inside its group."""
    if trial.is_library or search.pool is None:
        return search.libraries[trial.library][0], {}, ""
    return "triton", search.pool.schedule(trial.position).to_dict(), ",".join(search.pool.rewrites(trial.position))


def predicted(search: GroupSearch, position: int) -> dict[str, float]:
    assert search.pool is not None
    row = search.pool.predictions
    return {
        "predicted_regs": float(row.regs[position]), "predicted_spills": float(row.spill_bytes[position]) / 4,
        "predicted_smem": float(row.smem[position]), "predicted_dram_bytes": float(row.dram_bytes[position]),
    }  # fmt: skip


def training_row(search: GroupSearch, trial: Trial, record: Measurement) -> dict[str, Any]:
    """Features beside labels: what training reads, with no program at hand."""
    assert search.pool is not None
    features = search.pool.features.recording()
    row: dict[str, Any] = {name: float(column[trial.position]) for name, column in features.items()}
    compiled = trial.compiled
    assert compiled is not None
    return row | {
        "workload": record.workload,
        "shape_json": record.shape_json,
        "family": record.family,
        "program_key": record.group_key,
        "config_digest": record.config_digest,
        "config_json": record.config_json,
        "rewrites": record.rewrites,
        "target": record.target,
        "status": record.status,
        "n_regs": compiled.n_regs,
        "spill_bytes": compiled.spill_bytes,
        "smem_bytes": compiled.smem_bytes,
        "time_us": None if trial.recording else trial.time_us,
        "run_id": record.run_id,
        "when": record.when.isoformat(timespec="seconds"),
        "autofuse": __version__,
        "graph_key": record.graph_key,
        "propensity": record.propensity,
    }


def _paired(timed: Timed, times: tuple[float, ...], series: str) -> tuple[float, ...]:
    """Reference times of the same rounds, where each sample has one."""
    return timed.reference_us if series == "race" and len(timed.reference_us) == len(times) else ()
