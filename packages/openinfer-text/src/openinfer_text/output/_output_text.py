"""`OutputText`: token ids of one output to visible text, with stop strings applied."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from openinfer_text.output._stop_strings import StopSet, StopStrings
from openinfer_text.tokens._detokenizer import IncrementalDetokenizer
from openinfer_text.tokens._tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """The visible text that some new tokens add."""

    text: str
    """New visible text; "" while everything is held back."""
    stopped_by: str | None
    """The stop string that ended the text; None while the text continues."""
    num_tokens: int
    """Number of pushed tokens that were used; tokens after a stop string are not."""


class OutputText:
    """Detokeniser and stop strings of one output; one thread at a time.

    The text and the stop do not depend on how tokens are grouped into pushes.
    """

    # Thousands of outputs take turns, each with cold caches, so the cost of a token depends on the
    # memory that it touches. The class therefore has slots, and a short path for whole characters.
    __slots__ = (
        "_detokenizer",
        "_is_clean",
        "_num_decoded",
        "_num_unwatched",
        "_silent",
        "_starts",
        "_stops",
        "_whole_text",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: StopSet | Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        stop_token_ids: Collection[int] = (),
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        shown_tokens: Collection[str] = (),
        spaces_between_special_tokens: bool = True,
        context_ids: Iterable[int] = (),
        is_located: bool = False,
    ) -> None:
        """Starts an output.

        Args:
            tokenizer: shared, not owned.
            stops: strings that end the text; outputs of one request may share a `StopSet`.
            include_stop_str_in_output: show the stop string, and the text of a stop token too.
            stop_token_ids: ids at which the engine ends the request. The engine delivers them like
                any other id; their text is not part of the output. With ignore_eos, leave out
                ids that do not end the request.
            min_tokens: minimum number of output tokens; stop strings are ignored until then.
            skip_special_tokens: as `IncrementalDetokenizer`.
            shown_tokens: as `IncrementalDetokenizer`; usually the markers of a parser.
            spaces_between_special_tokens: as `IncrementalDetokenizer`.
            context_ids: as `IncrementalDetokenizer`; usually the end of the prompt.
            is_located: remember where in the text each token starts; see `take_starts`.

        Raises:
            ValueError: if a stop string is empty.
        """
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            skip_special_tokens=skip_special_tokens,
            shown_tokens=shown_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
            context_ids=context_ids,
        )
        self._stops = StopStrings(stops, include_stop_str_in_output=include_stop_str_in_output)
        self._silent = frozenset() if include_stop_str_in_output else frozenset(stop_token_ids)
        self._num_unwatched = min_tokens
        self._num_decoded = 0
        self._starts: list[int] | None = [] if is_located else None
        self._is_clean = not self._detokenizer.has_pending
        """Whether no bytes are held back."""
        is_short = (
            self._detokenizer.is_plain
            and not (stops or is_located)
            and all(tokenizer.added_token(i) is not None for i in self._silent)
        )
        self._whole_text = tokenizer.whole_text if is_short else None

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text; None while the text continues."""
        return self._stops.matched

    @property
    def is_located(self) -> bool:
        """Whether `take_starts` may be called."""
        return self._starts is not None

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Appends tokens. After a stop string no further token is used or shown."""
        if self._is_clean and self._whole_text is not None and len(token_ids) == 1:
            text = self._whole_text(token_ids[0])
            if text is not None:
                return TextDelta(text, None, 1)
        shown: list[str] = []
        num_tokens = 0
        for token_id in token_ids:
            if self._stops.matched is not None:
                break
            num_tokens += 1
            if token_id not in self._silent:
                shown.append(self._push_one(token_id))
            elif self._starts is not None:
                self._starts.append(self._num_decoded)
        return TextDelta("".join(shown), self._stops.matched, num_tokens)

    def finish(self) -> TextDelta:
        """Ends the output and shows held text, which may complete a stop string."""
        text = ""
        if self._stops.matched is None:
            text = self._stops.push(self._detokenizer.flush())
            if self._stops.matched is None:
                text += self._stops.flush()
        return TextDelta(text, self._stops.matched, 0)

    def take_starts(self) -> list[int]:
        """Returns the offsets, in characters of text, of the tokens used since the last call.

        A token that continues a character starts where that character does. A token without text
        starts where the next text will. Offsets never decrease. Text that a stop string cut off
        counts.
        """
        assert self._starts is not None
        starts = self._starts[:]
        self._starts.clear()
        return starts

    def _push_one(self, token_id: int) -> str:
        if self._starts is None:
            text = self._detokenizer.push(token_id)
        else:
            broken = self._detokenizer.pending_text if self._detokenizer.has_pending else ""
            text = self._detokenizer.push(token_id)
            is_after = broken and text.startswith(broken)
            self._starts.append(self._num_decoded + (len(broken) if is_after else 0))
        if self._num_unwatched:
            self._num_unwatched -= 1
            shown = text
        else:
            shown = self._stops.push(text)
        self._num_decoded += len(text)
        self._is_clean = not self._detokenizer.has_pending
        return shown
