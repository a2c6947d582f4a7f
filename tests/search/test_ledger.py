"""The ledger compares with the best other way, which need not have been compiled."""

from __future__ import annotations

from pathlib import Path

from autofuse.results.explain import from_list
from autofuse.search.driver import tune
from autofuse.search.events import TuneRequest

WORKLOAD = """
import torch
def norm(device, rows=2048, cols=4096):
    return lambda x: torch.softmax(x, -1), (torch.randn(rows, cols, device=device, dtype=torch.float16),)
"""


def test_the_other_way_is_the_best_other_way(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(WORKLOAD)
    request = TuneRequest((f"{tmp_path}/w.py:norm",), target="h200", store=tmp_path, budget_trials=2)
    (result,) = tune(request)
    assert result.total_us is not None
    assert result.unfused_us is not None
    assert len(result.groups) == 1
    for entry in from_list(list(result.ledger)):
        apart = entry.apart.predicted_us
        assert apart is not None
        assert result.total_us < apart < result.unfused_us / 1.5, entry.value
