"""Optuna as a strategy: Gaussian process or multivariate TPE, asked in batches, storage in memory only.

A pool holds valid candidates (a sample of them where there are many), and Optuna knows nothing of constraints: what it
suggests is moved to the nearest candidate of the same subspace that was not given yet. Optuna then learns from the
candidate that was measured; the suggestion that could not be had is told as failed, which its samplers ignore.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autofuse.search.strategies import Outcome, _Base

if TYPE_CHECKING:
    import optuna

Value = int | bool | str
SUBSPACE = "subspace"


class Digit(Protocol):
    """One choice of a subspace (schedule.sampling)."""

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> tuple[Value, ...]: ...
    @property
    def ordered(self) -> bool: ...


class Digits(Protocol):
    """What this needs of schedule.sampling.Candidates: its choices, and what a step of each adds to an index."""

    @property
    def digits(self) -> Sequence[Digit]: ...
    @property
    def strides(self) -> Sequence[int]: ...


class OptunaStrategy(_Base):
    """spaces: of each subspace; which, index: of each position of the pool, its subspace and the index therein."""

    def __init__(
        self, spaces: Sequence[Digits], which: NDArray[np.int64], index: NDArray[np.int64], sampler: str, seed: int = 0
    ) -> None:
        super().__init__(len(index), seed)
        self.spaces = spaces
        self.which = np.asarray(which)
        self.settings = [_positions(space, index[self.which == number]) for number, space in enumerate(spaces)]
        self.members = [np.flatnonzero(self.which == number) for number in range(len(spaces))]
        self.study = _study(sampler, seed)
        self.flat = sampler == "gp"
        self.distributions = self._distributions()
        self.pending: dict[int, optuna.trial.Trial | None] = {}

    # --- names: one parameter a choice of a subspace ---

    def _distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        used = [number for number, members in enumerate(self.members) if members.size]
        found: dict[str, optuna.distributions.BaseDistribution] = {SUBSPACE: CategoricalDistribution(used or [0])}
        for number in used:
            for digit in self.spaces[number].digits:
                name = f"{number}.{digit.name}"
                # Positions, not values: block sizes are powers of two, so equal steps are equal ratios.
                found[name] = (
                    IntDistribution(0, len(digit.values) - 1)
                    if digit.ordered
                    else CategoricalDistribution(list(range(len(digit.values))))
                )
        return found

    def ask(self, n: int) -> list[int]:
        found: list[int] = []
        while len(found) < min(n, len(found) + self.left):
            found.append(self._ask())
        return found

    def _ask(self) -> int:
        trial = self._suggest()
        position, exact = self._nearest(trial.params)
        if not exact:
            self._tell(trial, None, failed=True)
        self.pending[position] = trial if exact else None
        return self.give(position)

    def _suggest(self) -> optuna.trial.Trial:
        """The Gaussian process needs one fixed space; TPE is asked for the choices of one subspace only."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.flat:
                return self.study.ask(fixed_distributions=self.distributions)
            trial = self.study.ask()
            number = int(self._draw(trial, SUBSPACE))
            for digit in self.spaces[number].digits:
                self._draw(trial, f"{number}.{digit.name}")
            return trial

    def _draw(self, trial: optuna.trial.Trial, name: str) -> int:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        distribution = self.distributions[name]
        if isinstance(distribution, IntDistribution):
            return trial.suggest_int(name, distribution.low, distribution.high)
        assert isinstance(distribution, CategoricalDistribution)
        return int(trial.suggest_categorical(name, distribution.choices))  # type: ignore[arg-type]

    def _nearest(self, params: dict[str, Any]) -> tuple[int, bool]:
        """The position that was not given yet and is nearest to the suggestion, and whether it is that exactly."""
        number = int(params[SUBSPACE])
        if not self.fresh[self.members[number]].any():
            position = int(self.rng.choice(np.flatnonzero(self.fresh)))
            return position, False
        digits = self.spaces[number].digits
        wanted = np.array([params[f"{number}.{digit.name}"] for digit in digits], dtype=np.int64)
        away = np.zeros(len(self.members[number]), dtype=np.float64)
        for column, digit in enumerate(digits):
            step = np.abs(self.settings[number][:, column] - wanted[column])
            away += step / max(len(digit.values) - 1, 1) if digit.ordered else np.minimum(step, 1)
        away[~self.fresh[self.members[number]]] = np.inf
        best = int(np.argmin(away))
        return int(self.members[number][best]), bool(away[best] == 0)

    def tell(self, position: int, outcome: Outcome) -> None:
        super().tell(position, outcome)
        known = position in self.pending
        trial = self.pending.pop(position, None)
        if trial is not None:
            self._tell(trial, outcome.time_us)
        elif known or outcome.time_us is not None:
            self._add(position, outcome.time_us)

    def _tell(self, trial: optuna.trial.Trial, time_us: float | None, *, failed: bool = False) -> None:
        """A candidate that failed is pruned, which TPE counts among the bad; a failed trial counts as nothing."""
        from optuna.trial import TrialState

        if time_us is not None:
            self.study.tell(trial, _objective(time_us))
        else:
            self.study.tell(trial, state=TrialState.FAIL if failed else TrialState.PRUNED)

    def _add(self, position: int, time_us: float | None) -> None:
        """A measurement of a candidate that Optuna did not suggest."""
        from optuna.trial import TrialState, create_trial

        params = self._params(position)
        state = TrialState.PRUNED if time_us is None else TrialState.COMPLETE
        value = None if time_us is None else _objective(time_us)
        distributions = {name: self.distributions[name] for name in params}
        self.study.add_trial(create_trial(state=state, value=value, params=params, distributions=distributions))

    def _params(self, position: int) -> dict[str, Any]:
        number = int(self.which[position])
        row = self.settings[number][int(np.searchsorted(self.members[number], position))]
        params: dict[str, Any] = {SUBSPACE: number}
        params |= {f"{number}.{digit.name}": int(at) for digit, at in zip(self.spaces[number].digits, row, strict=True)}
        if self.flat:
            # Choices of other subspaces mean nothing here; their first values stand in, always the same.
            params = dict.fromkeys(self.distributions, 0) | params
        return params


def _positions(space: Digits, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position of each choice's value, a row a candidate."""
    columns = [index // stride % len(digit.values) for digit, stride in zip(space.digits, space.strides, strict=True)]
    return np.stack(columns, axis=1) if columns else np.zeros((len(index), 0), dtype=np.int64)


def _objective(time_us: float) -> float:
    """Times differ by factors, and a slow candidate should not outweigh all others."""
    return float(np.log(max(time_us, 1e-6)))


def _study(sampler: str, seed: int) -> optuna.study.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen: optuna.samplers.BaseSampler = (
            optuna.samplers.GPSampler(seed=seed)
            if sampler == "gp"
            else optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
        )
        return optuna.create_study(sampler=chosen, direction="minimize")
