"""The ledger compares with the best other way, which need not have been compiled; and where fusing loses, the plan is
the better one and the ledger has both numbers. Times are made up there, by what a candidate computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch._subclasses.fake_tensor import FakeTensorMode

from autofuse.capture.trace import capture
from autofuse.codegen.kernel import Kernel
from autofuse.cost.device import TARGETS
from autofuse.cost.model import CostModel
from autofuse.fusion.cover import Cover, k_best
from autofuse.ir.graph import Contract, Graph
from autofuse.ir.program import ContractNode, Program
from autofuse.measure.decide import Rounds
from autofuse.measure.records import Candidate, Compiled, Inputs, Timed, TritonStep, Verified
from autofuse.plans.environment import current_environment
from autofuse.results.explain import LedgerEntry, from_list
from autofuse.results.log import RunLog
from autofuse.search import graph as search_graph
from autofuse.search import rounds as search_rounds
from autofuse.search.context import Context
from autofuse.search.driver import tune
from autofuse.search.effort import Budget, Effort
from autofuse.search.events import TuneRequest
from autofuse.search.finish import choose
from autofuse.search.graph import COVERS, GraphTuner, Outcome
from autofuse.search.journal import Journal
from autofuse.search.pool import Pool as Scored
from autofuse.search.pool import score
from autofuse.search.report import plan_of

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


# --- where fusing loses ---

H200 = TARGETS["h200"]
TINY = Effort("tiny", 200, 64, 64, compiled=4, timed=2, rounds=1, timing=Rounds(), seconds=60.0)


class Pool:
    """Compiles at once."""

    def submit(self, kernel: Kernel) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        future.set_result(Compiled(kernel.digest, "ok", 200, binary_sha=kernel.digest))
        return future


@dataclass(frozen=True)
class Times:
    """us of a matrix product alone, generated or cuBLAS's; of a kernel that holds a product and more; and of any
    other op, or a kernel of several. in_a_row: what library calls spare where they follow each other."""

    product: float
    cublas: float
    fused: float
    other: float = 9.0
    in_a_row: float = 0.0

    def of(self, candidate: Candidate) -> float:
        ops = [op for op in candidate.graph.ops if not op.is_view]
        products = sum(isinstance(op.form, Contract) for op in ops)
        if not isinstance(candidate.steps[0], TritonStep):
            apart = products * self.cublas + (len(ops) - products) * self.other
            return apart - (len(ops) - 1) * self.in_a_row
        return self.fused if products and len(ops) > 1 else self.product if products else self.other


@dataclass(frozen=True)
class FakeWorker:
    """of: a group's time. whole: a whole plan's, by its key."""

    of: Callable[[Candidate], float]
    whole: Mapping[str, float]

    def verify(self, candidate: Candidate, _inputs: Inputs) -> Verified:
        return Verified(candidate.key, "ok")

    def time(self, candidates: Sequence[Candidate], _inputs: Inputs, _rules: Rounds) -> list[Timed]:
        return [timed(candidate.key, self.of(candidate)) for candidate in candidates]

    def time_plans(self, plans: Sequence[Candidate], _inputs: Inputs) -> list[Timed]:
        return [timed(plan.key, self.whole.get(plan.key, 1e6)) for plan in plans]


def timed(key: str, us: float) -> Timed:
    return Timed(key, "ok", (us,), (10.0,), (us,), us, us / 10.0)


def searched(graph: Graph, times: Times, folder: Path) -> Outcome:
    with RunLog.create(folder) as log:
        journal, worker = Journal(log, "test", "{}", H200, "this graph"), FakeWorker(times.of, {})
        context = Context(H200, CostModel(), TINY, Budget(), journal, Pool(), worker, "model")  # type: ignore[arg-type]
        return GraphTuner(graph, context).run()


def planned(outcome: Outcome) -> tuple[dict[tuple[str, ...], str], tuple[LedgerEntry, ...]]:
    """Groups of the plan with their implementation, and its ledger, as they are stored. A whole plan takes what its
    groups take together; eager and Inductor lose."""

    def total(cover: Cover) -> float:
        return sum(outcome.searches[group].settled_us() for group in cover.groups)

    whole = {f"cover{i}": total(cover) for i, cover in enumerate(outcome.covers)}
    worker = FakeWorker(lambda _: 0.0, {**whole, "unfused": total(outcome.unfused)})
    plan = plan_of(outcome, choose(outcome, H200, worker, 0), "test", {}, H200, current_environment())  # type: ignore[arg-type]
    ways = {group.ops: group.implementation for group in plan.groups}
    return ways, from_list(plan.evidence["ledger"])


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16)


def norm_after(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.linear(x, w), (w.shape[0],))


def two_products(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return F.linear(torch.relu(F.linear(x, w)), u)


def shaped(kind: str) -> Graph:
    with FakeTensorMode():
        if kind == "norm":
            fn, args = norm_after, (empty(8192, 4096), empty(8192, 4096))
        else:
            fn, args = two_products, (empty(8192, 4096), empty(4096, 4096), empty(4096, 4096))
    (captured,) = capture(fn, args)
    return captured.graph


@pytest.fixture(scope="module")
def graphs() -> Mapping[str, Graph]:
    return {kind: shaped(kind) for kind in ("norm", "products")}


@pytest.fixture
def no_prejudice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are timed however long the model expects them to take."""
    monkeypatch.setattr(search_rounds, "HOPELESS_KERNELS", float("inf"))


def test_kernels_that_are_far_beyond_a_library_call_are_not_compiled(
    graphs: Mapping[str, Graph], tmp_path: Path
) -> None:
    """Two large products in one kernel make the first one again for every tile of the second: predicted, and enough."""
    outcome = searched(graphs["products"], Times(60.0, 50.0, fused=1.0), tmp_path)
    whole = next(search for group, search in outcome.searches.items() if len(group.ops) == 3)
    assert whole.exhausted
    assert not whole.trials


@pytest.mark.usefixtures("no_prejudice")
@pytest.mark.parametrize(("product", "cublas", "way"), [(60.0, 50.0, "aten"), (50.0, 60.0, "triton")])
@pytest.mark.parametrize(("kind", "apart_us"), [("norm", 59.0), ("products", 109.0)])
def test_where_fusing_loses_the_plan_keeps_apart_and_the_ledger_has_both_numbers(
    graphs: Mapping[str, Graph], tmp_path: Path, kind: str, apart_us: float, product: float, cublas: float, way: str
) -> None:
    """A product and a norm over a long row, and two large products: one kernel of all would take 400 us."""
    ways, entries = planned(searched(graphs[kind], Times(product, cublas, fused=400.0, in_a_row=-1.0), tmp_path))
    products = [op.name for op in graphs[kind].ops if isinstance(op.form, Contract)]
    assert [ways[name,] for name in products] == [way] * len(products), ways
    between = [entry for entry in entries if entry.producer in products or entry.consumers[0] in products]
    assert between
    for entry in between:
        assert (entry.verdict, entry.timing) == ("materialised", "measured")
        assert (entry.fused.time_us, entry.apart.time_us) == (400.0, apart_us)
        assert f"; 400.0 us fused against {apart_us} us apart (measured), " in entry.reason()
        assert entry.reason().endswith("x slower")


@pytest.mark.usefixtures("no_prejudice")
@pytest.mark.parametrize(("kind", "apart_us"), [("norm", 59.0), ("products", 90.0)])
def test_where_fusing_wins_it_is_one_kernel(
    graphs: Mapping[str, Graph], tmp_path: Path, kind: str, apart_us: float
) -> None:
    """The same with a kernel of all at 40 us, so that it is the times that decide. (Two products apart: one of them
    takes the ReLU in, which is 40 us too.)"""
    ways, entries = planned(searched(graphs[kind], Times(60.0, 50.0, fused=40.0, in_a_row=-1.0), tmp_path))
    assert list(ways.values()) == ["triton"]
    (entry,) = [entry for entry in entries if entry.value == "mm"]
    assert (entry.verdict, entry.fused.time_us, entry.apart.time_us) == ("fused", 40.0, apart_us)
    assert entry.reason().endswith("x faster")


@pytest.mark.usefixtures("no_prejudice")
def test_library_calls_in_a_row_fuse_nothing(graphs: Mapping[str, Graph], tmp_path: Path) -> None:
    """They may be one group of the plan, where they are faster so; what they hand on is in memory all the same."""
    outcome = searched(graphs["products"], Times(60.0, 50.0, fused=400.0, in_a_row=2.0), tmp_path)
    ways, entries = planned(outcome)
    assert list(ways.items()) == [(("mm", "relu", "mm_1"), "aten")]
    for entry in entries:
        assert (entry.verdict, entry.fused.time_us, entry.apart.time_us) == ("materialised", 400.0, 105.0)
    (group,) = plan_of(outcome, choose(outcome, H200, None, 0), "test", {}, H200, current_environment()).groups
    assert group.evidence["saved_bytes"] == 0


def gated(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ w) * (x @ u)


def test_a_kernel_that_the_model_likes_less_than_others_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predicted at 1.2 times the best of what is apart, of which there are more ways than are searched at once."""
    with FakeTensorMode():
        (captured,) = capture(gated, (empty(8192, 4096), empty(4096, 4096), empty(4096, 4096)))
    factor = 1.0

    def scored(program: Program, *arguments: Any, **options: Any) -> Scored:
        found = score(program, *arguments, **options)
        if sum(isinstance(node, ContractNode) for node in program.nodes) < 2:
            return found
        return replace(found, predictions=replace(found.predictions, time_us=found.predictions.time_us * factor))

    for module in (search_graph, search_rounds):
        monkeypatch.setattr(module, "score", scored)
    with RunLog.create(tmp_path / "look") as log:
        journal = Journal(log, "test", "{}", H200, "this graph")
        context = Context(H200, CostModel(), TINY, Budget(), journal, Pool(), None, "model")  # type: ignore[arg-type]
        looks = GraphTuner(captured.graph, context)
        looks.enumerate()
    (whole,) = [group for group in looks.searches if len(group.ops) == len(looks.graph.ops)]
    costs = {group: search.cost_us() for group, search in looks.searches.items() if group != whole}
    covers = k_best(looks.graph, list(costs), list(costs.values()), COVERS)
    factor = 1.2 * covers[0].cost / looks.searches[whole].cost_us()
    assert len(covers) == COVERS
    assert covers[-1].cost < 1.2 * covers[0].cost

    best = covers[0].cost

    class AsPredicted(Times):
        """Of whatever is apart; the kernel of all takes less."""

        def of(self, candidate: Candidate) -> float:
            ops = [op for op in candidate.graph.ops if not op.is_view]
            products = sum(isinstance(op.form, Contract) for op in ops)
            together = isinstance(candidate.steps[0], TritonStep) and products == 2
            return 0.9 * best if together else best * (0.4 * products + 0.1 * (len(ops) - products))

    outcome = searched(captured.graph, AsPredicted(0.0, 0.0, 0.0), tmp_path / "search")
    assert outcome.searches[whole].measured_us() == 0.9 * best
    assert outcome.covers[0].groups == (whole,)
