"""The map from checkpoint tensors to parameters, checked to be complete."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from openinfer_nn.errors import CheckpointError
from openinfer_nn.weights._safetensors import TensorEntry


class WeightMap:
    """Checkpoint names and their destinations, written by a model.

    Every parameter must be filled exactly once. Every tensor of the checkpoint must be used or
    declared ignorable. Anything else is an error and not a guess.
    """

    def __init__(self) -> None:
        self._destinations: dict[str, torch.Tensor] = {}
        self._ignorable: list[str] = []
        self._repeats: dict[str, tuple[str, str]] = {}

    def add(self, name: str, destination: torch.Tensor) -> None:
        """Maps a checkpoint tensor to a parameter, or to a contiguous run of its rows.

        Args:
            name: Name of the tensor in the checkpoint.
            destination: A parameter or a view of one, in the tensor's shape; its dtype may differ.
        """
        assert name not in self._destinations, f"{name} is mapped twice"
        assert destination.is_contiguous(), f"the destination of {name} is not contiguous"
        self._destinations[name] = destination

    def ignore(self, pattern: str) -> None:
        """Ignores all tensors whose names match a shell pattern."""
        self._ignorable.append(pattern)

    def repeat(self, name: str, of: str, otherwise: str) -> None:
        """Declares a tensor optional, and a copy of another one if the checkpoint has it.

        Args:
            name: Name of the copy in the checkpoint.
            of: Name of the original, which must have been added.
            otherwise: Reason of the error if the bytes differ.
        """
        assert of in self._destinations, f"{of} has no destination"
        self._repeats[name] = (of, otherwise)

    def check_covers(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Asserts that the destinations tile the parameters: no byte twice, no byte missing.

        Args:
            parameters: Names and tensors, from `Module.named_parameters`.
        """
        spans = sorted(
            (destination.data_ptr(), destination.nbytes, name)
            for name, destination in self._destinations.items()
        )
        wanted = sorted((tensor.data_ptr(), tensor.nbytes, name) for name, tensor in parameters)
        spans.reverse()
        for begin, num_bytes, name in wanted:
            filled = begin
            while spans and filled < begin + num_bytes:
                at, size, source = spans.pop()
                assert at == filled, f"{source} does not continue {name} where it is filled so far"
                filled += size
            assert filled == begin + num_bytes, f"{name} is not filled exactly"
        assert not spans, f"{spans[-1][2] if spans else ''} fills no parameter"

    def match(
        self, folder: Path, entries: Mapping[str, TensorEntry]
    ) -> list[tuple[TensorEntry, torch.Tensor]]:
        """Pairs the tensors of a checkpoint with their destinations.

        Raises:
            CheckpointError: A tensor is missing, unknown, or of another shape.
        """
        missing = [name for name in self._destinations if name not in entries]
        if missing:
            raise CheckpointError(folder, missing[0], _and_more("it is missing", len(missing)))
        unknown = [
            name
            for name in entries
            if name not in self._destinations
            and name not in self._repeats
            and not any(fnmatchcase(name, pattern) for pattern in self._ignorable)
        ]
        if unknown:
            path = entries[unknown[0]].path
            reason = "this model has no place for it"
            raise CheckpointError(path, unknown[0], _and_more(reason, len(unknown)))
        pairs = []
        for name, destination in self._destinations.items():
            entry = entries[name]
            if entry.shape != tuple(destination.shape):
                raise CheckpointError(
                    entry.path,
                    name,
                    f"its shape is {list(entry.shape)}, the configuration asks for "
                    f"{list(destination.shape)}",
                )
            pairs.append((entry, destination))
        return pairs

    def repeated(
        self, entries: Mapping[str, TensorEntry]
    ) -> list[tuple[TensorEntry, TensorEntry, str]]:
        """Returns the copies in a checkpoint: copy, original, and the error's reason on a mismatch.

        Raises:
            CheckpointError: A copy differs from its original in dtype or shape.
        """
        found = []
        for name, (of, otherwise) in self._repeats.items():
            if name not in entries:
                continue
            tensor, original = entries[name], entries[of]
            if (tensor.dtype, tensor.shape) != (original.dtype, original.shape):
                raise CheckpointError(tensor.path, name, otherwise)
            found.append((tensor, original, otherwise))
        return found


def _and_more(reason: str, count: int) -> str:
    return reason if count == 1 else f"{reason}, and {count - 1} more like it"
