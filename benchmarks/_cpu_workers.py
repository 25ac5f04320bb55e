"""Worker process of `cpu.py`: loads one system's model, then measures windows on request.

    _cpu_workers.py openinfer-bf16|openinfer-int8|openinfer-int4|transformers-bf16 FOLDER

Commands and results are lines of JSON. A window is one prompt: the time to its first token
(prefill), or the rate of the later tokens (decode). `steps` is the forward pass and the logits.
"""

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _cpu_model import CONFIG, DECODE_TOKENS, PREFILL_TOKENS, PROMPT_TOKENS, prompt

_BLOCK_SIZE = 16


class OpenInfer:
    """The engine's own loop in this process: intake, plan, forward, sample, settle, events."""

    def __init__(self, folder: str, quantization: str | None) -> None:
        from openinfer_engine import EngineOptions, LaunchSpec, assemble
        from openinfer_qwen3 import LINE
        from openinfer_qwen3.config import Qwen3Config
        from openinfer_qwen3.model import Qwen3Model
        from openinfer_runtime import BuildOptions, launch_torch

        options = EngineOptions(
            device="cpu",
            load_format="dummy",
            max_num_seqs=16,
            max_num_batched_tokens=PREFILL_TOKENS,
            max_model_len=4 * PREFILL_TOKENS,
            enable_prefix_caching=False,
            quantization=quantization,
        )
        spec = LaunchSpec(model_path=folder, model_line="qwen3", engine=options)

        def build(build_options: BuildOptions) -> Qwen3Model:
            self.model = Qwen3Model(
                Qwen3Config.from_dict(CONFIG),
                device="cpu",
                dtype=torch.bfloat16,
                block_size=_BLOCK_SIZE,
                max_model_len=16_384,
                quantization=build_options.quantization,
            )
            return self.model

        self._loop = assemble(launch_torch(spec, LINE.plan(spec), build), options)
        self._num_requests = 0
        self._quantization = quantization

    def versions(self) -> dict[str, str]:
        from openinfer_kernels import describe

        backends = {report.op: report.backend for report in describe("cpu")}
        product = "linear" if self._quantization is None else f"linear {self._quantization}"
        linear, attention = backends[product], backends["paged_attention"]
        return {
            "torch": torch.__version__,
            "backends": f"{product} {linear}, paged_attention {attention}",
        }

    def stamps(self, num_prompt_tokens: int, num_tokens: int) -> list[float]:
        """When the request was sent, then when each token came."""
        from openinfer_contract import GenerateRequest, Sampling, StopRules, TokenEvent, pack_ids

        self._num_requests += 1
        ids = prompt(num_prompt_tokens, self._num_requests)
        stamps = [time.perf_counter()]

        def take(event: TokenEvent) -> None:
            stamps.extend([time.perf_counter()] * (len(event.token_ids) // 4))

        request = GenerateRequest(
            request_id=f"{self._num_requests}",
            prompt_token_ids=pack_ids(ids),
            sampling=Sampling(temperature=0.0),
            stop=StopRules(max_tokens=num_tokens, ignore_eos=True),
        )
        self._loop.submit(request, take)
        while self._loop.has_work:
            self._loop.step()
        assert len(stamps) == num_tokens + 1, f"{len(stamps) - 1} tokens came"
        return stamps

    def steps(self, batch: int, context: int, count: int) -> list[float]:
        """Milliseconds of decode steps of `batch` sequences that are `context` tokens long."""
        from openinfer_nn import CacheView, StepInputs

        blocks_each = -(-context // _BLOCK_SIZE)
        num_blocks = batch * blocks_each
        spec = self.model.cache_spec()
        num_bytes = num_blocks * spec.bytes_per_block(_BLOCK_SIZE)
        with torch.inference_mode():
            arena = torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8)
            # Written, or every page would be the same page of zeros.
            arena.view(torch.bfloat16).fill_(0.01)
            cache = CacheView(arena, spec, block_size=_BLOCK_SIZE, num_blocks=num_blocks)
            order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))
            table = order.int().view(batch, blocks_each)
            last = table[:, -1].long() * _BLOCK_SIZE + (context - 1) % _BLOCK_SIZE
            inputs = StepInputs(
                token_ids=torch.arange(batch),
                positions=torch.full((batch,), context - 1),
                cu_seqlens_q=torch.arange(batch + 1, dtype=torch.int32),
                seq_lens=torch.full((batch,), context, dtype=torch.int32),
                block_table=table,
                slot_mapping=last,
                logits_indices=torch.arange(batch),
                max_seqlen_q=1,
                max_seqlen_k=context,
            )
            times = []
            for _ in range(count):
                begun = time.perf_counter()
                self.model.logits(self.model(inputs, cache))
                times.append(1e3 * (time.perf_counter() - begun))
        return times


class Transformers:
    """`generate`, greedy, with its cache."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(0)
        self._model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), dtype=torch.bfloat16
        ).eval()
        self._num_requests = 0

    def versions(self) -> dict[str, str]:
        import transformers

        return {"transformers": transformers.__version__, "torch": torch.__version__}

    def stamps(self, num_prompt_tokens: int, num_tokens: int) -> list[float]:
        """As above; transformers asks its stopping criteria after every token."""
        self._num_requests += 1
        ids = torch.tensor([prompt(num_prompt_tokens, self._num_requests)])
        stamps: list[float] = []

        def stamp(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            stamps.append(time.perf_counter())
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        begun = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                pad_token_id=0,
                stopping_criteria=[stamp],
            )
        assert len(stamps) == num_tokens, f"{len(stamps)} tokens came"
        return [begun, *stamps]


def answer(system: Any, command: dict[str, Any]) -> Any:
    match command["run"]:
        case "versions":
            return system.versions()
        case "decode":
            stamps = system.stamps(PROMPT_TOKENS, DECODE_TOKENS)
            return (len(stamps) - 2) / (stamps[-1] - stamps[1])
        case "prefill":
            sent, first = system.stamps(PREFILL_TOKENS, 1)
            return PREFILL_TOKENS / (first - sent)
        case "steps":
            return system.steps(command["batch"], command["context"], command["count"])
    raise ValueError(command)


SYSTEMS: dict[str, Callable[[str], Any]] = {
    "openinfer-bf16": lambda folder: OpenInfer(folder, None),
    "openinfer-int8": lambda folder: OpenInfer(folder, "int8"),
    "openinfer-int4": lambda folder: OpenInfer(folder, "int4"),
    "transformers-bf16": Transformers,
}


def main() -> None:
    name, folder = sys.argv[1:]
    (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
    # The libraries' own output must not mix with the lines of JSON.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    system = SYSTEMS[name](folder)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(system, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
