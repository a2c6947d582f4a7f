"""Wrong input to the real commands: exit code, one `error:` line that names the thing and the remedy, no traceback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import autofuse
from autofuse.cli.main import app
from autofuse.errors import PlanError
from autofuse.plans.store import PlanStore

WORKLOADS = """
import torch
def right(device, rows=4):
    return torch.relu, (torch.zeros(rows, 4, device=device, dtype=torch.float16),)
def raises(device, rows=4):
    raise KeyError("seven")
def fails_later(device, rows=4):
    def fn(x): raise ValueError("when called")
    return fn, (torch.zeros(rows, device=device),)
def wrong_shapes(device, rows=4):
    return lambda x: x @ x, (torch.zeros(rows, rows + 1, device=device),)
def wrong_return(device, rows=4):
    return torch.zeros(rows)
def no_device(rows=4):
    return None
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "w.py"
    made.write_text(WORKLOADS)
    return made


def tune(store: Path, *arguments: object) -> Any:
    target = () if "--target" in arguments else ("--target", "h200")
    return CliRunner().invoke(app, ["tune", *map(str, arguments), *target, "--store", str(store)])


def check(result: Any, *said: object, code: int = 2) -> None:
    assert result.exit_code == code, result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, result.stderr
    for text in said:
        assert str(text) in errors[0]
    assert "Traceback" not in result.stderr
    assert "bug in autofuse" not in result.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "has no function 'nothing'"),
        ("raises", "raised KeyError: 'seven'"),
        ("fails_later", "when called"),
        ("wrong_shapes", "wrong_shapes"),
        ("wrong_return", "must return (callable, tuple of arguments), not Tensor"),
        ("no_device", "the first parameter must be `device`"),
    ],
)
def test_a_wrong_workload(file: Path, tmp_path: Path, name: str, said: str) -> None:
    check(tune(tmp_path / "s", f"{file}:{name}"), file, said)


def test_a_missing_file_a_broken_one_and_an_unknown_name(file: Path, tmp_path: Path) -> None:
    check(tune(tmp_path / "s", f"{tmp_path}/none.py:f"), f"{tmp_path}/none.py")
    file.write_text("def f(device:\n")
    check(tune(tmp_path / "s", f"{file}:f"), file, "SyntaxError")
    check(tune(tmp_path / "s", "nonsense"), "nonsense", "path/file.py:function")


def test_dims(file: Path, tmp_path: Path) -> None:
    check(tune(tmp_path / "s", f"{file}:right", "--shape", "colums=4"), "colums", "it has: rows")
    check(tune(tmp_path / "s", f"{file}:right", "--shape", "rows=four"), "'four' is not a whole number")
    check(tune(tmp_path / "s", f"{file}:right", "--shape", "rows=0"), "rows must be a positive whole number")


def test_an_unknown_target_lists_the_known(file: Path, tmp_path: Path) -> None:
    for target in ("h2000", "cuda:x"):
        check(tune(tmp_path / "s", f"{file}:right", "--target", target), target, "h200")
    check(
        tune(tmp_path / "s", f"{file}:right", "--target", "cuda:99"),
        "no GPU cuda:99 here",
        "--target h200",
    )


def test_one_wrong_workload_does_not_take_the_others_along(file: Path, tmp_path: Path) -> None:
    result = tune(tmp_path / "s", f"{file}:raises", f"{file}:right", "--budget-trials", 1)
    check(result, "KeyError")
    assert len(PlanStore(tmp_path / "s").list()) == 1


def test_a_broken_space_file_is_named_line_by_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text('family = "map"\narch = [\n')
    result = CliRunner().invoke(app, ["space", "check", str(broken)])
    assert result.exit_code == 2
    assert str(broken) in result.stderr
    assert "Traceback" not in result.stderr


def test_a_store_that_is_a_file(file: Path, tmp_path: Path) -> None:
    check(tune(file, f"{file}:right"), file, "is not a folder", "AUTOFUSE_STORE")


def test_a_corrupt_store_is_left_as_it_is(file: Path, tmp_path: Path) -> None:
    held = tmp_path / "plans.sqlite"
    held.write_bytes(b"no database" * 500)
    check(tune(tmp_path, f"{file}:right"), held, "corrupt", "move it away")
    assert held.read_bytes() == b"no database" * 500
    assert not list(tmp_path.glob("results/*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store(file: Path, tmp_path: Path) -> None:
    store = tmp_path / "s"
    store.mkdir(mode=0o500)
    check(tune(store, f"{file}:right"), store, "--store")


def test_results_that_cannot_be_written(file: Path, tmp_path: Path) -> None:
    check(tune(tmp_path / "s", f"{file}:right", "--results", file), file, "--results")


def test_a_plan_of_another_target_is_no_plan(file: Path, tmp_path: Path) -> None:
    assert tune(tmp_path, f"{file}:right", "--budget-trials", 1).exit_code == 0
    check(
        CliRunner().invoke(app, ["explain", f"{file}:right", "--target", "a100", "--store", str(tmp_path)]),
        "no plan",
        "autofuse tune",
    )
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
    x = torch.zeros(4, 4, dtype=torch.float16)
    with torch.no_grad(), pytest.raises(PlanError, match="plan is for h200, not for a100"):
        autofuse.compile(torch.relu, target="a100", store=tmp_path, executor="interpreter", on_miss="error")(x)
