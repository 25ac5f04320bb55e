import pytest

from openinfer_scheduler import SchedulerConfig

GOOD = {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_model_len", 0),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 3),
        ("depth", 0),
        ("max_queued_requests", 0),
        ("max_queued_tokens", -1),
        ("max_chunk_tokens", 0),
        ("watermark", 1.0),
        ("watermark", -0.1),
        ("admission", "eager"),
        ("max_partial_prefills", 0),
        ("max_adapters", 0),
        ("num_draft_tokens", -1),
        ("role", "router"),
        ("max_model_len", float("nan")),
        ("max_num_seqs", 1.5),
        ("max_adapters", "two"),
        ("num_draft_tokens", 0.5),
        ("seed", -1),
        ("eos_token_ids", (2, -1)),
        ("overload_retry_after_s", -1.0),
        ("overload_retry_after_s", float("nan")),
        ("target_itl_s", 0.0),
        ("target_itl_s", float("inf")),
        ("target_itl_s", float("nan")),
    ],
)
def test_invalid_values_are_refused_by_field_name(field, value):
    with pytest.raises(ValueError, match=field):
        SchedulerConfig(**(GOOD | {field: value}))


def test_good_values_pass():
    assert SchedulerConfig(**GOOD).depth == 2


def test_every_row_must_fit_a_step_with_its_drafts():
    assert SchedulerConfig(**GOOD, num_draft_tokens=3).num_draft_tokens == 3
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(16\).* 20"):
        SchedulerConfig(**GOOD, num_draft_tokens=4)
