"""Cost model: duration of a step from bytes, FLOP and kernel launches.

    step = overhead + launches
         + max(weight bytes / read rate, product FLOP / product rate)
         + keys and values of decode rows / decode attention rate
         + max(attention FLOP, keys and values) of prefill rows
         + recurrent states, read and written
         + all-reduces, two a layer, if several devices share a model

Products and attention alternate layer by layer, so their times add up. Prefill attention is counted
in (query, key) pairs: a query at position p attends to p + 1 keys. The devices of one replica work
on the same step at once, each on its share of weights, heads and FLOP. All-reduces are rings.
"""

import numpy as np

from openinfer_sim.device._figures import DeviceFigures, ModelFigures, Overheads

_REDUCES_PER_LAYER = 2
"""All-reduces per layer: one after attention, one after the feed-forward part."""
_BYTES_PER_ACTIVATION = 2


class CostModel:
    """Durations of the steps of one model on one device, or on several with tensor parallelism.

    Args:
        model: Sizes of the whole model.
        device: Rates of each device.
        overheads: Overheads of the serving stack.
        num_devices: Number of tensor parallel ranks.
    """

    def __init__(
        self,
        model: ModelFigures,
        device: DeviceFigures,
        overheads: Overheads,
        *,
        num_devices: int = 1,
    ) -> None:
        self._set_collectives(model, device, num_devices)
        self._model = model = model.of_rank(num_devices)
        read_rate = device.read_bytes_per_s
        self._weight_s_per_byte = 1.0 / (overheads.read_share * read_rate)
        kv_rate = overheads.decode_attention_share * read_rate
        read_bytes = model.kv_read_bytes_per_token
        self._kv_s_per_token = (
            model.kv_bytes_per_token if read_bytes is None else read_bytes
        ) / kv_rate
        self._row_s = (
            2.0 * model.state_bytes / (overheads.state_share * read_rate)
            + model.kv_read_bytes_per_row / kv_rate
        )
        product_rate = overheads.product_share * device.product_flops
        self._product_s_per_token = 2.0 * model.num_active_params / product_rate
        self._head_s_per_token = 2.0 * model.num_head_params / product_rate
        attention_rate = overheads.attention_share * device.attention_flops
        self._pair_s = model.num_attention_layers * model.attention_flops_per_pair / attention_rate
        self._query_s = model.attention_flops_per_query / attention_rate
        self._fixed_s = (
            overheads.step_s
            + overheads.launch_s * model.num_layers * model.launches_per_layer
            + self._reduces_s
        )

    def _set_collectives(
        self, model: ModelFigures, device: DeviceFigures, num_devices: int
    ) -> None:
        num_reduces = _REDUCES_PER_LAYER * model.num_layers if num_devices > 1 else 0
        sent = 2.0 * (num_devices - 1) / num_devices * model.hidden_size * _BYTES_PER_ACTIVATION
        self._reduces_s = num_reduces * device.link_latency_s
        self._reduce_s_per_token = num_reduces * sent / device.link_bytes_per_s

    def decode_s(self, num_rows: int, num_kv_tokens: int) -> float:
        """Returns the seconds of a step that has only decode rows.

        Args:
            num_rows: Number of rows, of one token each.
            num_kv_tokens: Number of positions that the rows attend to, summed.
        """
        return (
            self._fixed_s
            + self._products_s(num_rows, num_rows)
            + num_kv_tokens * self._kv_s_per_token
            + num_rows * self._row_s
        )

    def decode_run_s(self, num_rows: int, num_kv_tokens: int, num_steps: int) -> list[float]:
        """Returns `decode_s` of each of `num_steps` consecutive steps.

        Args:
            num_rows: Number of rows, of one token each in every step.
            num_kv_tokens: Number of positions that the rows attended to before the first step,
                summed.
            num_steps: Number of steps.
        """
        kv_tokens = num_kv_tokens + num_rows * np.arange(1, num_steps + 1)
        durations: list[float] = (
            self._fixed_s
            + self._products_s(num_rows, num_rows)
            + kv_tokens * self._kv_s_per_token
            + num_rows * self._row_s
        ).tolist()
        return durations

    def prefill_s(self, num_tokens: int, num_pairs: int, num_kv_tokens: int) -> float:
        """Returns the seconds that prefill rows add to a step, without matrix products.

        Args:
            num_tokens: Number of tokens of the prefill rows.
            num_pairs: Number of (query, key) pairs of these rows, summed.
            num_kv_tokens: Number of positions that these rows attend to, summed.
        """
        model = self._model
        overhead = model.prefill_overhead_s if num_tokens >= model.prefill_overhead_from else 0.0
        attention_s = num_pairs * self._pair_s + num_tokens * self._query_s
        return overhead + max(attention_s, num_kv_tokens * self._kv_s_per_token)

    def mixed_s(
        self,
        *,
        num_decode_rows: int,
        num_decode_kv_tokens: int,
        num_prefill_rows: int,
        num_prefill_tokens: int,
        num_prefill_pairs: int,
        num_prefill_kv_tokens: int,
        num_sampled: int,
    ) -> float:
        """Returns the seconds of any step, from the arguments of `decode_s` and `prefill_s`."""
        return (
            self._fixed_s
            + self._products_s(num_decode_rows + num_prefill_tokens, num_sampled)
            + num_decode_kv_tokens * self._kv_s_per_token
            + (num_decode_rows + num_prefill_rows) * self._row_s
            + self.prefill_s(num_prefill_tokens, num_prefill_pairs, num_prefill_kv_tokens)
        )

    def _products_s(self, num_tokens: int, num_sampled: int) -> float:
        """Returns the seconds of matrix products and all-reduces.

        Products are bound by reading weights or by FLOP.
        """
        weights_s = self._model.weight_bytes(num_tokens) * self._weight_s_per_byte
        products_s = num_tokens * self._product_s_per_token + num_sampled * self._head_s_per_token
        return max(weights_s, products_s) + num_tokens * self._reduce_s_per_token
