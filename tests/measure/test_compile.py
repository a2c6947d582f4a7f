"""The compile pool: what it reads off a kernel, and that faults cost one kernel each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kernels import ADD, HEADER, add_kernel, matmul_kernel

from autofuse.measure.compile import CompilePool
from autofuse.measure.compiler import describe, first_line

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    before = os.environ.get("AUTOFUSE_CACHE_DIR")
    os.environ["AUTOFUSE_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    with CompilePool(90, workers=2, timeout_s=90) as pool:
        yield pool
    if before is None:
        del os.environ["AUTOFUSE_CACHE_DIR"]
    else:
        os.environ["AUTOFUSE_CACHE_DIR"] = before


def test_facts_of_a_small_kernel(pool):
    kernel = add_kernel(1000)
    made = pool.submit(kernel).result()
    assert (made.status, made.digest) == ("ok", kernel.digest)
    assert 8 <= made.n_regs <= 64
    assert made.n_spills == made.spill_bytes == made.smem_bytes == 0
    assert not made.uses_wgmma


def test_descriptors_give_wgmma_and_shared_memory(pool):
    made = pool.submit(matmul_kernel(512, 512, 512)).result()
    assert made.ok
    assert made.uses_wgmma
    # Three stages of a 128x64 and a 64x64 tile of 2 bytes.
    assert made.smem_bytes >= 3 * (128 * 64 + 64 * 64) * 2


def test_a_register_cap_spills(pool):
    made = pool.submit(replace(matmul_kernel(512, 512, 512, (128, 128, 64)), maxnreg=96)).result()
    assert made.ok
    assert made.n_regs <= 96
    assert made.spill_bytes == 4 * made.n_spills > 0


def test_the_binary_hash_ignores_names_and_sees_code(pool):
    kernel = add_kernel(1000)
    renamed = replace(kernel, name="other", source=ADD.replace("def add", "def other").replace("total", "renamed"))
    changed = replace(kernel, source=ADD.replace(") + tl.load(y", ") - tl.load(y"))
    bigger = replace(kernel, grid=(9, 1, 1))
    first, same, different, wider = (pool.submit(k).result() for k in (kernel, renamed, changed, bigger))
    assert first.binary_sha == same.binary_sha
    assert len({first.binary_sha, different.binary_sha, wider.binary_sha}) == 3


@pytest.mark.parametrize(
    ("source", "status", "detail"),
    [
        (ADD.replace("tl.store(", "tl.stroe("), "compile_error", "stroe"),
        (ADD.replace("def add", "def add(("), "compile_error", "SyntaxError"),
        ("import os\nos._exit(3)", "compile_crash", "status 3"),
        ("import ctypes\nctypes.string_at(0)", "compile_crash", "SIGSEGV"),
        (
            ADD.replace("    tl.store", '    total = tl.inline_asm_elementwise("bogus.f32 $0, $1;", "=f,f", [total], '
                        "tl.float32, True, 1)\n    tl.store"),
            "compile_error", "bogus",
        ),
    ],
)  # fmt: skip
def test_faults_are_values(pool, source, status, detail):
    made = pool.submit(add_kernel(1000, source=source)).result()
    assert made.status == status
    assert detail in made.detail
    assert "\n" not in made.detail
    assert len(made.detail) < 800
    assert pool.submit(add_kernel(1001)).result().ok


def test_prints_do_not_break_the_protocol(pool, capfd):
    noise = "import os\nprint('x' * 100000)\nos.write(1, b'raw')\nos.write(2, b'raw')\n"
    made = pool.submit(add_kernel(1000, source=noise + ADD)).result()
    assert made.ok
    assert capfd.readouterr() == ("", "")


def test_a_hang_is_killed_with_its_grandchildren(tmp_path):
    mark = tmp_path / "pid"
    hang = (
        "import subprocess, time\n"
        f"child = subprocess.Popen(['sleep', '300'])\nopen({str(mark)!r}, 'w').write(str(child.pid))\ntime.sleep(300)\n"
    )
    with CompilePool(90, workers=1, timeout_s=5) as pool:
        late = pool.submit(add_kernel(1000, source=hang)).result()
        assert late.status == "compile_timeout"
        wait_until_gone(int(mark.read_text()))
        (good,) = pool.map([add_kernel(1002)])
        assert good.ok


def test_leaving_the_pool_cancels_and_kills():
    stuck = add_kernel(1000, source="import time\ntime.sleep(300)\n" + HEADER)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), CompilePool(90, workers=1, timeout_s=200) as pool:  # noqa: PT012
        running, waiting = pool.submit(stuck), pool.submit(add_kernel(1))
        while not (running.running() and pool.pids()):
            time.sleep(0.05)
        pids = pool.pids()
        raise KeyboardInterrupt
    assert time.monotonic() - start < 60
    assert waiting.cancelled()
    assert running.result().status == "compile_crash"
    assert not any(alive(pid) for pid in pids)


def test_a_plain_script_and_its_sudden_end(tmp_path):
    """No __main__ guard, and killed outright: the children leave by themselves."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys, time\nsys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]\nprint('started')\n"
        "from kernels import add_kernel\nfrom autofuse.measure.compile import CompilePool\n"
        "pool = CompilePool(90)\nprint(pool.submit(add_kernel(1000)).result().status, pool.pids()[0], flush=True)\n"
        "time.sleep(300)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    status, pid = process.stdout.readline().split()
    assert status == "ok"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_until_gone(int(pid))


def wait_until_gone(pid: int) -> None:
    """A signal takes its time to be delivered to a grandchild."""
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline, pid
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_line_that_matters():
    mlir = "loc(\"x.py\":3:4): error: 'tt.dot' op bad operands\nmodule {\n  tt.func @k\n}\n"
    assert first_line(mlir) == "error: 'tt.dot' op bad operands"
    assert first_line('Traceback (most recent call last):\n  File "x", line 1\nValueError: no') == "ValueError: no"
    assert describe(ValueError("two\nlines")) == "ValueError: two"


def test_this_process_loads_what_the_pool_built(pool, monkeypatch):
    """Same key in Triton's cache, whatever this process's own Triton settings are."""
    triton = pytest.importorskip("triton")
    from autofuse.measure.paths import triton_cache_dir
    from autofuse.measure.source import compile_kernel

    monkeypatch.delenv("TRITON_DISABLE_LINE_INFO", raising=False)
    kernel = add_kernel(1003)
    assert pool.submit(kernel).result().ok
    built = set(triton_cache_dir().rglob("*.cubin"))
    compile_kernel(kernel, 90)
    assert built
    assert set(triton_cache_dir().rglob("*.cubin")) == built
    assert "TRITON_DISABLE_LINE_INFO" not in os.environ
    assert triton.knobs.cache.dir != str(triton_cache_dir())
