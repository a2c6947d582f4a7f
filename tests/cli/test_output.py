"""The contract of every subcommand: exit codes, one line an error, and a stdout that holds the JSON document alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autofuse.cli import output
from autofuse.cli.main import app
from autofuse.errors import NoValidPlan, StoreError

ROOT = Path(__file__).parents[2]


def body_of(error: BaseException) -> typer.Typer:
    made = typer.Typer()

    @made.command()
    @output.command
    def fails() -> None:
        raise error

    return made


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (StoreError("the store /x is corrupt: move it away"), 2, "error: the store /x is corrupt: move it away\n"),
        (NoValidPlan("nothing runs"), 3, "error: nothing runs\n"),
    ],
)
def test_an_error_of_ours_is_one_line_and_its_code(error: Exception, code: int, said: str) -> None:
    result = CliRunner().invoke(body_of(error))
    assert (result.exit_code, result.stderr, result.stdout) == (code, said, "")


def test_an_interrupt_is_130_and_says_that_all_is_kept() -> None:
    result = CliRunner().invoke(body_of(KeyboardInterrupt()))
    assert result.exit_code == 130
    assert "kept" in result.stderr
    assert "--resume" in result.stderr


def test_a_bug_is_1_with_a_traceback_and_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "crash_folder", lambda: tmp_path / "logs")
    result = CliRunner().invoke(body_of(ZeroDivisionError("seven")))
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    (log,) = (tmp_path / "logs").iterdir()
    assert str(log) in result.stderr
    assert "ZeroDivisionError: seven" in log.read_text()


def test_a_bug_without_a_place_for_the_log_is_still_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(output, "crash_folder", lambda: tmp_path / "file")
    result = CliRunner().invoke(body_of(ZeroDivisionError("seven")))
    assert result.exit_code == 1
    assert "no log could be written" in result.stderr


def test_with_json_even_what_c_prints_goes_to_stderr() -> None:
    script = (
        "import os, subprocess\nfrom autofuse.cli.output import document\n"
        "with document(True) as emit:\n"
        "    print('python'); os.write(1, b'descriptor\\n'); subprocess.run(['echo', 'child'])\n"
        "    emit({'a': 1.5})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout) == {"a": 1.5}
    assert {"python", "descriptor", "child"} <= set(done.stderr.split())


def test_what_is_not_finite_becomes_null() -> None:
    assert output.finite({"a": float("nan"), "b": (float("inf"), 1.0, {"c": -float("inf")})}) == {
        "a": None,
        "b": [None, 1.0, {"c": None}],
    }


def test_help_loads_neither_torch_nor_triton_nor_pyarrow() -> None:
    script = (
        "import sys\nfrom autofuse.cli.main import app\n"
        "try: app(['tune', '--help'])\nexcept SystemExit as e: assert not e.code\n"
        "bad = {'torch', 'triton', 'pyarrow', 'numpy', 'scipy', 'optuna'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "--budget-seconds" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["tune"], ["tune", "x", "--nonsense"], ["plans", "shew"], ["space", "count"], ["model", "train", "x"]]
)
def test_usage_errors_are_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout.split()[0]) == (0, "autofuse")


def test_ctrl_c_of_the_program_itself(tmp_path: Path) -> None:
    script = (
        "import sys, time, types\n"
        "fake = types.ModuleType('autofuse.search.driver')\n"
        "def tune(request, on_event):\n    print('searching', file=sys.stderr, flush=True); time.sleep(60)\n"
        "fake.tune = tune; sys.modules['autofuse.search.driver'] = fake\n"
        "from autofuse.cli.main import run\n"
        "sys.argv = ['autofuse', 'tune', 'x', '--json', '--store', sys.argv[1]]; run()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "searching\n":
            assert process.poll() is None
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert json.loads(out) == []
    assert "--resume" in err
