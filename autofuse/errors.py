"""The one exception tree. Candidates' failures are values (measure), never exceptions; bugs are plain exceptions."""

from __future__ import annotations


class AutofuseError(Exception):
    """Something the user can act on: the message names the thing and the remedy. exit_code is the CLI's."""

    exit_code = 2


class UsageError(AutofuseError):
    """A wrong argument, name or file."""


class WorkloadError(AutofuseError):
    """A workload that cannot be loaded, raises, or returns the wrong thing."""


class CaptureError(AutofuseError):
    """The function cannot be captured as a graph."""


class NothingToTune(CaptureError):
    """The function does nothing to a tensor: it is as fast as it gets, and torch.compile hands nothing over."""


class UnknownTarget(UsageError):
    """No such device or architecture."""


class SpaceError(AutofuseError):
    """A search-space file is wrong; the message lists every fault with its place."""


class InvalidSchedule(AutofuseError):
    """A schedule that does not fit its program or is not well formed."""


class StoreError(AutofuseError):
    """The plan store cannot be read or written."""


class PlanError(AutofuseError):
    """A plan file is malformed, foreign or stale."""


class ModelError(AutofuseError):
    """A cost-model file is malformed or does not fit."""


class ResultsError(AutofuseError):
    """A results folder or log cannot be read or written."""


class NoValidPlan(AutofuseError):
    """Nothing that was tried is right and runs."""

    exit_code = 3
