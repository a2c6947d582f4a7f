"""`python -m autofuse.measure.worker --device cuda:0` (or cpu: Triton's interpreter): verifies and times candidates.

An exception in a candidate's code is caught and becomes its status; `broken` in the answer says that the process (its
CUDA context) is of no more use. Hangs and deaths are the parent's to notice (supervisor.py).
"""

from __future__ import annotations

import argparse
import base64
import time
from collections import OrderedDict
from dataclasses import asdict, replace
from typing import Any

from autofuse.codegen.kernel import Kernel
from autofuse.ir.graph import Graph
from autofuse.ir.serial import graph_from_json
from autofuse.measure.child import Message, serve
from autofuse.measure.compiler import describe
from autofuse.measure.records import Candidate, Verified, inputs_from_json, steps_from_json

_KEPT_REFERENCES = 2
_KEPT_GRAPHS = 64


class Session:
    """The state between requests: references of the last graphs, prepared candidates, the stopwatch."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._graphs: OrderedDict[str, Graph] = OrderedDict()
        self._references: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._given: dict[tuple[str, str], Any] = {}
        self._runs: dict[int, Any] = {}
        self._watch: Any = None
        self._reference: Any = None

    def handle(self, message: Message) -> Message:
        return getattr(self, f"do_{message['do']}")(message)

    def do_verify(self, message: Message) -> Message:
        from autofuse.measure.execute import Runner
        from autofuse.measure.verify import check

        start = time.perf_counter()
        candidate = self._candidate(message)
        try:
            known = self._known(message, candidate.graph)
        except Exception as error:  # noqa: BLE001  no candidate is to blame: the reference itself does not run (or fit) here
            failed = Verified(candidate.key, "reference_error", detail=describe(error))
            return {"record": asdict(failed), "broken": self._broken()}
        try:
            verdict = check(candidate.key, Runner(candidate, self.device), known)
        except Exception as error:  # noqa: BLE001  the candidate's own failure, whatever it is
            verdict = Verified(candidate.key, "runtime_error", detail=describe(error))
        verdict = replace(verdict, seconds=time.perf_counter() - start)
        return {"record": asdict(verdict), "broken": self._broken()}

    def do_prepare(self, message: Message) -> Message:
        from autofuse.measure.execute import Runner

        candidate = self._candidate(message)
        given = self._inputs(message, candidate.graph)
        try:
            runner = Runner(candidate, self.device)
            settled = runner.ahead(given)
            self._runs[message["index"]] = self._stopwatch().prepare(lambda: runner(settled))
        except Exception as error:  # noqa: BLE001  as above
            return {"status": "runtime_error", "detail": describe(error), "broken": self._broken()}
        return {"status": "ok", "detail": "", "broken": False}

    def do_rounds(self, message: Message) -> Message:
        from autofuse.measure.timing import rounds

        runs = {index: self._runs[index] for index in message["active"]}
        watch = self._stopwatch()
        if self._reference is None:
            self._reference = watch.reference()
        try:
            samples, reference = rounds(watch, runs, self._reference, message["count"], message["seed"])
        except Exception as error:  # noqa: BLE001  a kernel that fails only now and then
            return {"status": "runtime_error", "detail": describe(error), "broken": self._broken()}
        return {
            "status": "ok", "samples": {str(index): values for index, values in samples.items()},
            "reference": reference, "broken": False,
        }  # fmt: skip

    def do_drop(self, message: Message) -> Message:
        for index in message["indices"]:
            self._runs.pop(index, None)
        return {}

    def do_reset(self, _message: Message) -> Message:
        self._runs.clear()
        self._given.clear()
        return {}

    def do_clocks(self, _message: Message) -> Message:
        from autofuse.measure.clocks import read

        return asdict(read(self.device))

    def do_describe(self, _message: Message) -> Message:
        from autofuse.measure.clocks import describe_device

        return describe_device(self.device)

    def do_kernel(self, message: Message) -> Message:
        """One kernel on tensors that came along; the tensors go back."""
        from autofuse.measure.launch import interpret_here

        tensors = {name: unpack(data) for name, data in message["tensors"].items()}
        try:
            interpret_here(Kernel.from_json(message["kernel"]), tensors)
        except Exception as error:  # noqa: BLE001  the kernel's own failure
            return {"status": "runtime_error", "detail": describe(error)}
        return {"status": "ok", "tensors": {name: pack(tensor) for name, tensor in tensors.items()}}

    def _candidate(self, message: Message) -> Candidate:
        text = message["graph"]
        if text not in self._graphs:
            self._graphs[text] = graph_from_json(text)
            while len(self._graphs) > _KEPT_GRAPHS:
                self._graphs.popitem(last=False)
        steps, ahead = steps_from_json(message["steps"]), tuple(message["ahead"])
        return Candidate(message["key"], self._graphs[text], steps, ahead)

    def _known(self, message: Message, graph: Graph) -> Any:
        """References of every draw."""
        from autofuse.measure.verify import DRAWS, reference

        key = (message["graph"], repr(message["inputs"]))
        if key not in self._references:
            while len(self._references) >= _KEPT_REFERENCES:
                self._references.popitem(last=False)
            chosen = inputs_from_json(message["inputs"])
            self._references[key] = [reference(graph, chosen, self.device, number) for number in range(DRAWS)]
        self._references.move_to_end(key)
        return self._references[key]

    def _inputs(self, message: Message, graph: Graph) -> Any:
        """One set of inputs for all candidates of a graph: cold L2 comes from the flush, not from other data."""
        from autofuse.measure.inputs import draw

        key = (message["graph"], repr(message["inputs"]))
        if key not in self._given:
            self._references.clear()  # float64 references are large; timing begins when verifying is done
            self._given[key] = draw(graph, inputs_from_json(message["inputs"]), self.device, 0)
        return self._given[key]

    def _stopwatch(self) -> Any:
        from autofuse.measure.timing import CudaStopwatch, HostStopwatch

        if self._watch is None:
            self._watch = HostStopwatch() if self.device == "cpu" else CudaStopwatch()
        return self._watch

    def _broken(self) -> bool:
        """Whether the CUDA context is lost: an illegal access fails every later call."""
        if self.device == "cpu":
            return False
        import torch

        try:
            torch.cuda.synchronize()
            torch.zeros(1, device="cuda").item()
        except Exception:  # noqa: BLE001  any error here means the same
            return True
        return False


def pack(tensor: Any) -> dict[str, Any]:
    """A CPU tensor as JSON: its whole storage, so that odd strides survive."""
    import torch

    count = tensor.untyped_storage().nbytes()
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage(), 0, (count,), (1,))
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape),
        "strides": list(tensor.stride()), "offset": tensor.storage_offset(),
        "data": base64.b64encode(raw.numpy().tobytes()).decode(),
    }  # fmt: skip


def unpack(data: dict[str, Any]) -> Any:
    import torch

    raw = bytearray(base64.b64decode(data["data"]))
    flat = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    # A storage of torch's own: frombuffer's may be less aligned than descriptors demand.
    flat = flat.clone().view(getattr(torch, data["dtype"]))
    return torch.as_strided(flat, data["shape"], data["strides"], data["offset"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    device: str = parser.parse_args().device

    def prepare() -> None:
        import torch
        import triton  # noqa: F401

        torch.set_grad_enabled(False)
        if device != "cpu":
            torch.cuda.set_device(device)
            torch.zeros(1, device=device)

    session = Session("cpu" if device == "cpu" else "cuda")
    serve(session.handle, prepare)


if __name__ == "__main__":
    main()
