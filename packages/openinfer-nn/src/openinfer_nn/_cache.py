"""Cache of a model: what it stores per token, and its tensors in the runtime's arena.

The arena is page-first: a block holds `block_size` tokens of every layer and plane, so that one
copy moves a block between tiers.

```
arena   | block 0                                         | block 1 ...
block   | layer 0                 | layer 1               | ...
layer   | k: [block_size, heads, head_dim] | v: [...]     |
```
"""

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneSpec:
    """One tensor cached per token and layer, such as the keys.

    Attributes:
        name: Unique among the planes of a cache.
        num_heads: Cached heads.
        head_dim: Dimensions of a head.
    """

    name: str
    num_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSpec:
    """Description of a model's cache, by which the runtime sizes the arena.

    Attributes:
        group: Name of the cache group.
        kind: "full": every token of a sequence is cached.
        num_layers: Layers with a cache.
        planes: The planes of each layer, in memory order.
        dtype: Dtype of every plane.
    """

    group: str
    kind: Literal["full"]
    num_layers: int
    planes: tuple[PlaneSpec, ...]
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all layers."""
        elements = sum(plane.num_heads * plane.head_dim for plane in self.planes)
        return self.num_layers * elements * self.dtype.itemsize

    def bytes_per_block(self, block_size: int) -> int:
        """Returns the bytes of one block of `block_size` tokens in all layers."""
        return block_size * self.bytes_per_token


class CacheView:
    """A model's tensors in an arena: one strided view per layer and plane.

    Attributes:
        spec: What is cached.
        block_size: Tokens per block.
        num_blocks: Blocks in the arena.
    """

    def __init__(
        self, arena: torch.Tensor, spec: CacheSpec, *, block_size: int, num_blocks: int
    ) -> None:
        """Cuts the arena into views. The runtime keeps ownership of it.

        Args:
            arena: [num_blocks * spec.bytes_per_block(block_size)], uint8, contiguous.
            spec: What is cached.
            block_size: Tokens per block.
            num_blocks: Blocks in the arena.

        Raises:
            ValueError: The arena has the wrong size, dtype or layout.
        """
        num_bytes = num_blocks * spec.bytes_per_block(block_size)
        if arena.dtype != torch.uint8 or arena.shape != (num_bytes,) or not arena.is_contiguous():
            raise ValueError(
                f"the arena must be {num_bytes} contiguous bytes (uint8), "
                f"got {tuple(arena.shape)} of {arena.dtype}"
            )
        self.spec = spec
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._layers = self._cut(arena.view(spec.dtype))

    def layer(self, index: int) -> tuple[torch.Tensor, ...]:
        """Returns the planes of a layer, each [num_blocks, block_size, num_heads, head_dim]."""
        return self._layers[index]

    def _cut(self, elements: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        spec, block_size = self.spec, self.block_size
        block_stride = spec.bytes_per_block(block_size) // spec.dtype.itemsize
        offset = elements.storage_offset()
        layers = []
        for _ in range(spec.num_layers):
            planes = []
            for plane in spec.planes:
                width = plane.num_heads * plane.head_dim
                planes.append(
                    elements.as_strided(
                        (self.num_blocks, block_size, plane.num_heads, plane.head_dim),
                        (block_stride, width, plane.head_dim, 1),
                        offset,
                    )
                )
                offset += block_size * width
            layers.append(tuple(planes))
        return layers
