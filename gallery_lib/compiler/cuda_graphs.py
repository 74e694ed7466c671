"""CUDA graphs of a compiled model, with tensors that callers may keep as in eager mode.

Inductor captures each compiled graph once and replays it, so the host queues one launch in the
place of hundreds. Shapes that change are left out. A replay writes its results, gradients
included, to the memory of the last replay. So results are copied at once; gradients that are still
there move to memory of their own before the next replay. What cannot be captured runs uncaptured.
torch's own part is `torch._inductor.cudagraph_trees`, read in torch 2.11 and 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gallery_lib.comm import process_group
from gallery_lib.compiler.calls import Call, wrap_calls
from gallery_lib.system.processes import tell

OPTIONS: dict[str, object] = {
    "triton.cudagraphs": True,
    "triton.cudagraph_skip_dynamic_graphs": True,
    # With it torch 2.11 leaves most of a static graph out of the captured parts.
    "graph_partition": False,
    # A cast of each weight to the dtype of autocast is a kernel of its own otherwise.
    "combo_kernels": True,
    "combo_kernels_pointwise_only": True,
}
"""Options of Inductor."""


def keep_tensors(model: nn.Module) -> None:
    """Copy what callers of a captured `model` may keep, before a replay takes its memory."""
    gradients = _Gradients(model)
    _all_gradients.add(gradients)
    _run_uncaptured_on_failure()

    def step(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for each in list(_all_gradients):  # models share the memory of their graphs
            each.move()
        result = call(*args, **kwargs)
        if torch.is_grad_enabled():
            gradients.watch(_tensors(result), _tensors((args, kwargs)))
        return pytree.tree_map(_copied, result)

    wrap_calls(model, step)


def _tensors(values: Any) -> list[Tensor]:
    return [one for one in pytree.tree_leaves(values) if isinstance(one, Tensor)]


def _copied(value: Any) -> Any:
    """Return a copy of a tensor that the model has computed on a GPU, and other values as is."""
    if not isinstance(value, Tensor) or not value.is_cuda or isinstance(value, nn.Parameter):
        return value
    return value.clone()


class _Gradients:
    """Gradients that may lie in memory of graphs, of one model; none is kept alive."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())  # frozen ones may be trained later
        self._seen: dict[int, weakref.ref[Tensor]] = {}
        self._moved: dict[int, weakref.ref[Tensor]] = {}

    def watch(self, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        """Look at the gradients at the end of each backward pass through `outputs`."""
        leaves = [one for one in inputs if one.is_leaf and one.requires_grad]
        look = functools.partial(self._look, leaves)

        def after(gradients: tuple[Any, ...], _: Any) -> tuple[Any, ...] | None:
            torch.autograd.Variable._execution_engine.queue_callback(look)  # type: ignore[attr-defined]
            if self._accumulate():
                return None
            return tuple(one.clone() if isinstance(one, Tensor) else one for one in gradients)

        for node in {one.grad_fn for one in outputs} - {None}:
            node.register_hook(after)  # type: ignore[union-attr]

    def _accumulate(self) -> bool:
        """Return whether this backward pass adds to `.grad`, so that no caller gets its tensors."""
        trained = next((p for p in self._parameters if p.requires_grad), None)
        try:
            return trained is not None and torch._C._will_engine_execute_node(
                torch.autograd.graph.get_gradient_edge(trained).node
            )
        except RuntimeError:  # a gradient that torch.autograd.grad returns
            return False

    def _look(self, leaves: Iterable[Tensor] = ()) -> None:
        for leaf in (*self._parameters, *leaves):
            one, moved = leaf.grad, self._moved
            if (
                one is not None
                and not _is_part(one)
                and (id(one) not in moved or moved[id(one)]() is not one)
            ):
                self._seen[id(one)] = weakref.ref(one)

    def move(self) -> None:
        """Give memory of its own to each gradient that is still there."""
        self._look()
        self._moved = {key: one for key, one in self._moved.items() if one() is not None}
        with torch.no_grad():
            for key, one in self._seen.items():
                if (gradient := one()) is not None and gradient.layout is torch.strided:
                    gradient.set_(gradient.clone())  # type: ignore[call-overload]
                    self._moved[key] = one
        self._seen.clear()


def _is_part(tensor: Tensor) -> bool:
    """Return whether a tensor is part of a larger buffer, as gradients in buckets are."""
    return tensor._is_view() and tensor.untyped_storage().nbytes() > tensor.nbytes


_all_gradients: weakref.WeakSet[_Gradients] = weakref.WeakSet()


# --------------------------------------------------------------------------------------------------
# Run uncaptured what cannot be captured: an operator that waits for the device, for instance. A
# capture that fails has run nothing on the device, so the inputs are as they were.


failure = ""
"""Why this process captures nothing any more."""


@functools.cache
def _run_uncaptured_on_failure() -> None:
    """Let torch run all graphs of this process uncaptured once a capture has failed."""
    from torch._inductor import cudagraph_trees as trees

    class Manager(trees.CUDAGraphTreeManager):  # one for each device
        def run(self, new_inputs: list[Any], function_id: Any) -> Any:
            if not failure:
                return super().run(new_inputs, function_id)
            if self.current_node is None or self.current_node.all_outputs_are_dead():
                self.shutdown()  # frees the memory of graphs
            return self.ids_to_funcs[function_id].model(new_inputs)

        def shutdown(self) -> None:
            if self.graph is not None:  # torch.compiler.reset() calls it, too
                super().shutdown()

        def record_function(self, new_inputs: list[Any], function_id: Any) -> Any:
            again = [self._reference(one) for one in new_inputs]
            try:
                with torch.cuda.stream(torch.cuda.current_stream()):
                    return super().record_function(new_inputs, function_id)
            except RuntimeError as error:
                self._give_up(error)
            return self.ids_to_funcs[function_id].model([one() for one in again])

        def _reference(self, value: Any) -> Callable[[], Any]:
            """Return a function that gives an input again, and does not keep graphs' memory.

            Nothing else gets memory there. What is kept while a graph is captured takes memory for
            as long as the graph lives.
            """
            node = self.current_node
            if not isinstance(value, Tensor) or not (
                node and node._is_cuda_graph_recorded_tensor(value)
            ):
                return lambda: value
            storage, like = value.untyped_storage(), value.new_empty(0)
            memory = storage.data_ptr(), value.device, storage.nbytes()
            place = value.storage_offset(), value.size(), value.stride()
            return lambda: like.set_(torch._C._construct_storage_from_data_pointer(*memory), *place)

        def _give_up(self, error: BaseException) -> None:
            """Undo what the failed capture has left, and say so."""
            global failure
            with contextlib.suppress(RuntimeError):  # where torch has done it
                torch._C._cuda_endAllocateToPool(self.device_index, self.cuda_graphs_thread_pool)
            generator = torch.cuda.default_generators[self.device_index]
            generator.graphsafe_set_state(generator.clone_state())  # one that is in no capture
            while error.__context__ is not None:
                error = error.__context__
            failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            if process_group.rank() == 0:
                tell(
                    f"a graph cannot be captured ({failure}), so training goes on without CUDA "
                    "graphs. config.compiler.cuda_graphs = False spares the attempt"
                )

    trees.CUDAGraphTreeManager = Manager  # type: ignore[misc]
