"""Admission, continuous batching, chunked prefill and preemption as a state machine."""

from openinfer_scheduler._config import SchedulerConfig
from openinfer_scheduler._lookahead import LOOKAHEAD, max_unsettled_tokens
from openinfer_scheduler._policy import ChargedPolicy, Policy, least_urgent
from openinfer_scheduler._policy_loading import POLICIES, installed_policies, load_policy
from openinfer_scheduler._scheduler import Scheduler
from openinfer_scheduler._step_plan import (
    BlockIds,
    PlannedRow,
    RowStart,
    StepPlan,
    StepResult,
    TokenIds,
)
from openinfer_scheduler.errors import (
    PolicyError,
    SchedulerError,
    StepOrderError,
    UnknownPolicy,
    UnusablePolicy,
)
from openinfer_scheduler.plan._prefill_pace import MIN_PREFILL_TOKENS, PrefillPace
from openinfer_scheduler.settle._settle import Effects
from openinfer_scheduler.state._sequence import SequenceState
from openinfer_scheduler.state._waiting_queue import WaitingSnapshot

# isort: split
# The built-in policies import the names above, as policies of other packages do.
from openinfer_scheduler.policies._fair import Fair
from openinfer_scheduler.policies._fcfs import FCFS
from openinfer_scheduler.policies._longest_prefix_match import LongestPrefixMatch
from openinfer_scheduler.policies._priority import Priority
from openinfer_scheduler.policies._shortest_prefill_first import ShortestPrefillFirst

__all__ = [
    # the state machine
    "Scheduler",
    "SchedulerConfig",
    "Effects",
    "max_unsettled_tokens",
    # plans
    "StepPlan",
    "PlannedRow",
    "RowStart",
    "StepResult",
    "TokenIds",
    "BlockIds",
    "LOOKAHEAD",
    # policies
    "Policy",
    "ChargedPolicy",
    "SequenceState",
    "WaitingSnapshot",
    "FCFS",
    "Priority",
    "LongestPrefixMatch",
    "ShortestPrefillFirst",
    "Fair",
    "least_urgent",
    "load_policy",
    "installed_policies",
    "POLICIES",
    # the prefill limit
    "PrefillPace",
    "MIN_PREFILL_TOKENS",
    # errors
    "SchedulerError",
    "StepOrderError",
    "PolicyError",
    "UnknownPolicy",
    "UnusablePolicy",
]
