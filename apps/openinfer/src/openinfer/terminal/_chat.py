"""`openinfer chat`: a talk in the terminal."""

import argparse
from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import version
from typing import Any

from openinfer._interrupts import raise_interrupts
from openinfer.errors import UsageError
from openinfer.terminal._chat_tools import TOOLS, Tool, parse_tools, run_call
from openinfer.terminal._open_model import open_model, sampling_options
from openinfer.terminal._result_room import fit_result
from openinfer.terminal._screen import Screen
from openinfer.terminal._terminal_model import Ended, Message, Model
from openinfer_contract import OpenInferError
from openinfer_text import AssistantTurn, Content, Reasoning, ToolCall

MAX_ROUNDS = 8
_HELP = """\
/tools [NAMES]   the tools that the model may call; python,shell or none sets them, and asks again
/system [TEXT]   the system message; TEXT sets it
/clear, /new     forgets the talk, keeps the system message
/quit            ends, as does Ctrl-D; Ctrl-C stops an answer
\"""              begins a text of several lines, up to the next \"""; a pasted one needs none"""
_NO_TERMINAL = (
    "not run: nobody can be asked here, where standard input or error is no terminal; "
    "--run-tools runs calls unasked, without a sandbox"
)


def chat(namespace: argparse.Namespace, extra: Sequence[str]) -> int:
    """Runs a conversation on the terminal until the input ends."""
    screen = Screen()
    tools = parse_tools(namespace.tools)
    if namespace.run_tools and not (tools or screen.is_interactive):
        raise UsageError(
            "--run-tools has no effect without tools; name some by --tools, or both go"
        )
    if screen.is_interactive and not namespace.url:
        screen.remark("loading the model ...")
    model = open_model(namespace, extra, namespace.positional)
    raise_interrupts()
    with closing(model):
        talk = Talk(model, screen, sampling_options(namespace), runs_unasked=namespace.run_tools)
        talk.offer(tools)
        talk.system = namespace.system
        if screen.is_interactive:
            _greet(screen, model.name, tools, runs_unasked=namespace.run_tools)
        while (line := screen.read_line()) is not None:
            if _is_command(line):
                if not _obey(line, talk, screen):
                    break
            elif line.strip():
                talk.say(line)
    return 0


def _greet(screen: Screen, name: str, tools: Sequence[Tool], *, runs_unasked: bool) -> None:
    screen.remark(f"{name}, by OpenInfer {version('openinfer')}")
    if tools:
        named = ", ".join(tool.name for tool in tools)
        asked = "you are NOT asked" if runs_unasked else "you are asked"
        screen.remark(f"It may call {named} on this machine, without a sandbox; {asked}.")
        screen.remark('Try: "What is 1234 * 5678?"')
    else:
        screen.remark('Try: "Tell me a story about a fox." With --tools python it can calculate.')
    screen.remark("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the talk.")


def _is_command(line: str) -> bool:
    # A path is no command, nor is a text of several lines.
    words = line.split(maxsplit=1)
    return (
        bool(words) and "\n" not in line and words[0].startswith("/") and words[0].count("/") == 1
    )


def _obey(line: str, talk: "Talk", screen: Screen) -> bool:
    """Follows a command; whether the talk goes on."""
    name, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    if name in ("/quit", "/exit"):
        return False
    if name == "/help":
        screen.remark(_HELP)
    elif name in ("/clear", "/new"):
        talk.forget()
        screen.remark("a new talk")
    elif name == "/system":
        if rest:
            talk.system = rest
        screen.remark(f"system message: {talk.system or 'none'}")
    elif name == "/tools":
        try:
            if rest:
                talk.offer(parse_tools(rest))
        except UsageError as error:
            screen.error(str(error))
        named = ", ".join(tool.name for tool in talk.tools)
        screen.remark(f"tools: {named or 'none'} (there are: {', '.join(TOOLS)})")
    else:
        screen.error(f"{name} is no command; /help lists them")
    return True


class Talk:
    """A conversation with one model.

    Whatever happens in a turn, an interrupt included, what is kept is a conversation that a model
    can go on with: every call has its result, and every question an answer, if only a part of one;
    only calls that the user refused or interrupted end a turn by their results.

    Attributes:
        messages: all but the system message.
        system: the system message.
        tools: what the model may call; `offer` changes it.
    """

    def __init__(
        self, model: Model, screen: Screen, options: dict[str, Any], *, runs_unasked: bool
    ) -> None:
        """Begins a talk.

        Args:
            model: not owned.
            screen: where it happens.
            options: sampling fields of every request.
            runs_unasked: whether calls are run without asking.
        """
        self.messages: list[Message] = []
        self.system: str | None = None
        self.tools: Sequence[Tool] = ()
        self._model = model
        self._screen = screen
        self._options = options
        self._runs_unasked = runs_unasked
        self._allowed: set[str] = set()
        """Names of the tools whose calls the user wants to be run unasked."""
        self._turn: AssistantTurn | None = None
        self._open_calls: list[ToolCall] = []
        self._is_running = False
        """Whether the first open call was begun."""

    def offer(self, tools: Sequence[Tool]) -> None:
        """Sets the tools; what was allowed for good is asked for again."""
        self.tools = tools
        self._allowed.clear()

    def forget(self) -> None:
        """Forgets all but the system message and the tools."""
        self.messages.clear()
        self._allowed.clear()

    def say(self, line: str) -> None:
        """One turn of the user, and all that the model makes of it.

        Raises:
            OpenInferError: the model failed, or calls what nobody can be asked about, and nobody is
                there to try again.
            KeyboardInterrupt: likewise, Ctrl-C ends a piped talk.
        """
        num_before = len(self.messages)
        self.messages.append({"role": "user", "content": line})
        try:
            self._answer()
        except KeyboardInterrupt:
            self._settle()
            self._screen.remark("[stopped]")
            if not self._screen.is_interactive:
                raise
        except OpenInferError as error:
            del self.messages[num_before:]
            self._turn, self._open_calls = None, []
            if not self._screen.is_interactive:
                raise
            self._screen.error(str(error))
            if self.messages:
                self._screen.remark("[the talk so far is kept; /clear begins a new one]")
        self._screen.end_line()

    def _answer(self) -> None:
        for _ in range(MAX_ROUNDS):
            if not self._take_turn(self.tools):
                return
            if not self._run_calls():
                return
        self._screen.remark(f"[stopped after {MAX_ROUNDS} rounds of calls]")
        self._take_turn(())

    def _take_turn(self, offered: Sequence[Tool]) -> bool:
        """Streams one answer of the model; whether it ends in calls that wait for results."""
        self._turn = turn = AssistantTurn()
        tools = [tool.definition for tool in offered]
        reason = ""
        stream = self._model.stream_chat(self._conversation(), self._options, tools)
        with closing(stream):
            for piece in stream:
                if isinstance(piece, Ended):
                    reason = piece.reason
                    continue
                turn.add([piece])
                if isinstance(piece, Content):
                    self._screen.content(piece.text)
                elif isinstance(piece, Reasoning):
                    self._screen.reasoning(piece.text)
        has_calls = reason == "tool_calls" and bool(turn.calls and offered)
        self._open_calls = list(turn.calls) if has_calls else []
        self._keep(turn, with_calls=has_calls)
        if reason == "length":
            is_full = self._screen.is_interactive and "max_tokens" not in self._options
            way_out = "; /clear begins a new talk" if is_full else ""
            self._screen.remark(f"[cut off: no tokens left{way_out}]")
        elif turn.calls and not has_calls:
            self._screen.remark("[the model broke off a call; nothing was run]")
        return has_calls

    def _conversation(self) -> list[Message]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages]

    def _keep(self, turn: AssistantTurn, *, with_calls: bool) -> None:
        message = turn.message()
        message["content"] = turn.content
        # One name is enough for a model to read; calls without results would confuse it.
        message.pop("reasoning", None)
        if not with_calls:
            message.pop("tool_calls", None)
        self.messages.append(message)
        self._turn = None

    def _run_calls(self) -> bool:
        """Runs the calls that wait; whether the model is to go on."""
        goes_on = True
        while self._open_calls:
            call = self._open_calls[0]
            tool = next((tool for tool in self.tools if tool.name == call.name), None)
            text = None if tool is None else tool.argument(call.arguments)
            self._screen.call(call.name, call.arguments if text is None else text)
            if tool is None:
                known = ", ".join(tool.name for tool in self.tools)
                result = f"error: there is no tool {call.name!r}; there are: {known}"
            elif text is None or self._may_run(tool):
                self._is_running = True
                result = run_call(tool, call.arguments)
            else:
                goes_on, result = False, "not run: it was not allowed"
            self._screen.result(result)
            self._close_call(self._fitted(result))
        return goes_on

    def _fitted(self, result: str) -> str:
        """The result of the first open call as far as the model's context has room for it."""
        conversation = self._conversation()
        tools = [tool.definition for tool in self.tools]

        def num_left(text: str) -> int | None:
            answered = [*conversation, _result(self._open_calls[0], text)]
            return self._model.num_tokens_left(answered, tools)

        text, num_chars = fit_result(result, num_left, num_results=len(self._open_calls))
        if num_chars < len(result):
            self._screen.remark(
                f"[the model reads {num_chars} of these {len(result)} characters: its context has "
                "no room for more]"
            )
        return text

    def _may_run(self, tool: Tool) -> bool:
        if self._runs_unasked or tool.name in self._allowed:
            return True
        if not self._screen.is_interactive:
            raise UsageError(f"the model calls {tool.name}; {_NO_TERMINAL}")
        if not self._screen.can_ask:
            self._screen.error(_NO_TERMINAL)
            return False
        answer = self._screen.ask("run it? [y/N/always] ")
        if answer in ("a", "always"):
            self._allowed.add(tool.name)
            self._screen.remark(f"calls of {tool.name} are no longer asked for; /tools resets that")
        return tool.name in self._allowed or answer in ("y", "yes")

    def _close_call(self, result: str) -> None:
        call = self._open_calls.pop(0)
        self._is_running = False
        self.messages.append(_result(call, result))

    def _settle(self) -> None:
        """After an interrupt: what has come of the answer stays; calls say how far they came."""
        if self._turn is not None:
            self._keep(self._turn, with_calls=False)
        if self._is_running:
            self._close_call("error: the user stopped it; it may have done a part of its work")
        while self._open_calls:
            self._close_call("not run: the user interrupted it")


def _result(call: ToolCall, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call.call_id, "content": text}
