r"""`Renderer`: one chat template, by minijinja where it was seen to render as Jinja does.

    request -> shape -> all of it seen to be equal -> minijinja -> text
                   \-> seen to differ -------------> Jinja -----> text
                   \-> something new in it --> both, compared --> Jinja's text, and the verdict

Jinja's sandbox is the definition (`_jinja`); minijinja serves what was compared (`_shapes` says
what counts as alike). It never serves a text with characters on which the two are known to differ,
and where it fails Jinja has the word. A difference is logged, once for each template.
"""

import logging
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from openinfer_text.errors import TemplateError
from openinfer_text.templates._jinja import CLOCK, run
from openinfer_text.templates._minijinja import FastTemplate, plan_fast
from openinfer_text.templates._shapes import Shape, shape_of, words_of

_log = logging.getLogger(__name__)

_MAX_FEATURES = 8192
# White space in Python and not in Rust; and what becomes of half a surrogate pair there.
_DOUBTFUL = ("\x1c", "\x1d", "\x1e", "\x1f", "\ufffd")


class Renderer:
    """A compiled template; any thread, and nothing is shared between renders but verdicts.

    Attributes:
        slow_reason: why Jinja renders everything, None where minijinja may.
    """

    def __init__(
        self,
        name: str,
        source: str,
        parsed: nodes.Template,
        environment: ImmutableSandboxedEnvironment,
    ) -> None:
        """Compiles a parsed template.

        Raises:
            jinja2.TemplateSyntaxError: it is no valid Jinja.
        """
        self._name = name
        self._reference: jinja2.Template = environment.from_string(parsed)
        plan = plan_fast(source, parsed)
        self._fast: FastTemplate | None = plan if isinstance(plan, FastTemplate) else None
        self.slow_reason = plan if isinstance(plan, str) else None
        self._words = words_of(parsed)
        self._equal: dict[Hashable, set[Hashable]] = {}
        """By frame: features that were seen to be rendered alike."""
        self._differing: set[Shape] = set()
        self._num_features = 0
        self._has_differed = False
        if self.slow_reason is not None:
            _log.info("chat template %r is rendered by jinja2: %s", name, self.slow_reason)

    def render(self, variables: dict[str, Any]) -> str:
        """The text of the template's variables.

        Raises:
            TemplateError: whatever went wrong inside.
        """
        fast = self._fast
        if fast is None:
            return run(self._reference, variables)
        shape = shape_of(variables, self._words)
        if shape.features <= self._equal.get(shape.frame, set()):
            try:
                text = fast.render(variables)
            except Exception:  # whatever its functions raise; Jinja says what is wrong
                return self._compare(fast, variables, shape)
            if not _is_doubtful(text):
                return text
        elif shape not in self._differing:
            return self._compare(fast, variables, shape)
        return run(self._reference, variables)

    def _compare(self, fast: FastTemplate, variables: dict[str, Any], shape: Shape) -> str:
        CLOCK.now = datetime.now()
        try:
            found = _try(fast, variables)
            if isinstance(found, str) and _is_doubtful(found):
                # That the two differ here is known; it says nothing about others of this shape.
                return run(self._reference, variables)
            try:
                text = run(self._reference, variables)
            except TemplateError as error:
                self._judge(shape, isinstance(found, Exception), f"it raised {error}", found)
                raise
            self._judge(shape, found == text, text, found)
            return text
        finally:
            CLOCK.now = None

    def _judge(self, shape: Shape, is_equal: bool, wanted: str, found: str | Exception) -> None:
        self._num_features += len(shape.features)
        if self._num_features > _MAX_FEATURES:
            self._equal, self._differing = {}, set()
            self._num_features = len(shape.features)
        if is_equal and isinstance(found, str):
            self._equal.setdefault(shape.frame, set()).update(shape.features)
        else:
            # What refuses a request is no reason to let minijinja serve those that look like it.
            self._differing.add(shape)
        if is_equal or self._has_differed:
            return
        self._has_differed = True
        _log.warning(
            "chat template %r: minijinja does not render some requests as jinja2 does, which "
            "renders them instead (%s)",
            self._name,
            _difference(wanted, found),
        )


def _is_doubtful(text: str) -> bool:
    return any(char in text for char in _DOUBTFUL)


def _try(fast: FastTemplate, variables: Mapping[str, Any]) -> str | Exception:
    try:
        return fast.render(variables)
    except Exception as error:  # whatever its functions raise
        return error


def _difference(wanted: str, found: str | Exception) -> str:
    """Where two renderings part, without showing much of either."""
    if isinstance(found, Exception):
        return f"minijinja: {str(found).splitlines()[0][:80]}"
    at = next(
        (i for i, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b),
        min(len(wanted), len(found)),
    )
    return f"at character {at} of {len(wanted)}"
