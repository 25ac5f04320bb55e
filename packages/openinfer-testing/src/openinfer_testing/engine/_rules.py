"""Rules of `EngineHandle`, by name."""

from collections.abc import Mapping

from openinfer_testing.engine._rule import Rule
from openinfer_testing.engine._rules_control import CONTROL_RULES
from openinfer_testing.engine._rules_intake import INTAKE_RULES
from openinfer_testing.engine._rules_stream import SLOW_STREAM_RULES, STREAM_RULES

RULES: Mapping[str, Rule] = {
    rule.name: rule for rule in (*STREAM_RULES, *INTAKE_RULES, *CONTROL_RULES)
}
SLOW_RULES: Mapping[str, Rule] = {rule.name: rule for rule in SLOW_STREAM_RULES}
