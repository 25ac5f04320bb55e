import pytest

from openinfer_engine import EngineOptions, assemble
from openinfer_testing import ZeroCostExecutor


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"admission": "lifetime"}, "admission", "lifetime"),
        ({"long_prefill_token_threshold": 48}, "max_chunk_tokens", 48),
        ({"max_num_partial_prefills": 2}, "max_partial_prefills", 2),
        ({"target_itl_ms": 25.0}, "target_itl_s", 0.025),
        ({"max_queued_requests": 3}, "max_queued_requests", 3),
        ({"max_queued_tokens": 30}, "max_queued_tokens", 30),
        ({"seed": 5}, "seed", 5),
    ],
)
def test_options_reach_the_scheduler(options, field, value):
    def read(**options):
        loop = assemble(ZeroCostExecutor(), EngineOptions(**options))
        loop.close()
        return getattr(loop._scheduler._config, field)

    assert read(**options) == value
    assert read() != value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("long_prefill_token_threshold", 0),
        ("max_num_partial_prefills", -1),
        ("target_itl_ms", 0.0),
        ("target_itl_ms", float("inf")),
        ("target_itl_ms", float("nan")),
    ],
)
def test_nonsense_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=field):
        EngineOptions(**{field: value})
