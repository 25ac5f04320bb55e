"""`openinfer chat`: a conversation in the terminal."""

import argparse
from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import version
from typing import Any

from openinfer._interrupts import raise_interrupts
from openinfer.errors import UsageError
from openinfer.terminal._chat_tools import TOOLS, Tool, fit_result, parse_tools, run_call
from openinfer.terminal._open_model import open_model, sampling_options
from openinfer.terminal._screen import Screen
from openinfer.terminal._terminal_model import Ended, Message, Model
from openinfer_contract import OpenInferError
from openinfer_text import AssistantTurn, Content, Reasoning, ToolCall

MAX_ROUNDS = 8
_HELP = """\
/tools [NAMES]   shows or sets the tools that the model may call: python,shell or none
/system [TEXT]   shows or sets the system message
/clear, /new     begins a new conversation with the same system message
/quit            ends, as Ctrl-D does; Ctrl-C stops a response
\"""              begins and ends a text of several lines; pasted text needs none"""
_NO_TERMINAL = (
    "not run: there is no terminal on which to ask you first; "
    "--run-tools runs calls unasked, without a sandbox"
)


def chat(namespace: argparse.Namespace, extra: Sequence[str]) -> int:
    """Runs a conversation on the terminal until the input ends."""
    screen = Screen()
    tools = parse_tools(namespace.tools)
    if namespace.run_tools and not (tools or screen.is_interactive):
        raise UsageError(
            "--run-tools has no effect without tools; add --tools python,shell or leave it out"
        )
    if screen.is_interactive and not namespace.url:
        screen.remark("loading the model ...")
    model = open_model(namespace, extra, namespace.positional)
    raise_interrupts()
    with closing(model):
        conversation = Conversation(
            model, screen, sampling_options(namespace), runs_unasked=namespace.run_tools
        )
        conversation.set_tools(tools)
        conversation.system = namespace.system
        if screen.is_interactive:
            _greet(screen, model.name, tools, runs_unasked=namespace.run_tools)
        while (line := screen.read_line()) is not None:
            if _is_command(line):
                if not _run_command(line, conversation, screen):
                    break
            elif line.strip():
                conversation.take_turn(line)
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
    screen.remark("/help lists the commands; Ctrl-C stops a response, Ctrl-D ends.")


def _is_command(line: str) -> bool:
    # A command is one line whose first word has a single slash. A path or a longer text is a
    # message.
    words = line.split(maxsplit=1)
    return (
        bool(words) and "\n" not in line and words[0].startswith("/") and words[0].count("/") == 1
    )


def _run_command(line: str, conversation: "Conversation", screen: Screen) -> bool:
    """Runs a command; returns False if it ends the conversation."""
    name, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    if name in ("/quit", "/exit"):
        return False
    if name == "/help":
        screen.remark(_HELP)
    elif name in ("/clear", "/new"):
        conversation.reset()
        screen.remark("new conversation")
    elif name == "/system":
        if rest:
            conversation.system = rest
        screen.remark(f"system message: {conversation.system or 'none'}")
    elif name == "/tools":
        try:
            if rest:
                conversation.set_tools(parse_tools(rest))
        except UsageError as error:
            screen.error(str(error))
        named = ", ".join(tool.name for tool in conversation.tools)
        screen.remark(f"tools: {named or 'none'} (available: {', '.join(TOOLS)})")
    else:
        screen.error(f"{name} is not a command; /help lists the commands")
    return True


class Conversation:
    """A conversation with one model.

    After every turn, even an interrupted one, the conversation can be continued: each call has a
    result, and each user message has a response, complete or partial. A turn ends with results of
    calls only if the user refused or interrupted the calls.

    Attributes:
        messages: all messages except the system message.
        system: the system message.
        tools: the tools that the model may call; `set_tools` changes them.
    """

    def __init__(
        self, model: Model, screen: Screen, options: dict[str, Any], *, runs_unasked: bool
    ) -> None:
        """Begins a conversation.

        Args:
            model: the model. The caller closes it.
            screen: terminal that shows the conversation and asks the user.
            options: sampling fields of every request.
            runs_unasked: whether calls run without asking the user.
        """
        self.messages: list[Message] = []
        self.system: str | None = None
        self.tools: Sequence[Tool] = ()
        self._model = model
        self._screen = screen
        self._options = options
        self._runs_unasked = runs_unasked
        self._allowed: set[str] = set()
        """Names of the tools for which the user replied "always"."""
        self._turn: AssistantTurn | None = None
        self._open_calls: list[ToolCall] = []
        self._is_running = False
        """Whether the first open call has been started."""

    def set_tools(self, tools: Sequence[Tool]) -> None:
        """Sets the tools; every tool needs the user's permission again."""
        self.tools = tools
        self._allowed.clear()

    def reset(self) -> None:
        """Drops all messages except the system message, and all permissions."""
        self.messages.clear()
        self._allowed.clear()

    def take_turn(self, line: str) -> None:
        """Takes one turn of the user, and all responses and calls of the model after it.

        Raises:
            OpenInferError: only without a terminal: the model failed, or it called a tool that
                needs permission.
            KeyboardInterrupt: only without a terminal.
        """
        num_before = len(self.messages)
        self.messages.append({"role": "user", "content": line})
        try:
            self._respond()
        except KeyboardInterrupt:
            self._complete_messages()
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
                self._screen.remark("[the conversation so far is kept; /clear begins a new one]")
        self._screen.end_line()

    def _respond(self) -> None:
        for _ in range(MAX_ROUNDS):
            if not self._take_response(self.tools):
                return
            if not self._run_calls():
                return
        self._screen.remark(f"[stopped after {MAX_ROUNDS} rounds of calls]")
        self._take_response(())

    def _take_response(self, offered: Sequence[Tool]) -> bool:
        """Streams one response; returns whether it ends with calls that wait for results."""
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
            way_out = "; /clear begins a new conversation" if is_full else ""
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
        # `message()` has the reasoning under two names; one is enough. Calls without results would
        # confuse the model.
        message.pop("reasoning", None)
        if not with_calls:
            message.pop("tool_calls", None)
        self.messages.append(message)
        self._turn = None

    def _run_calls(self) -> bool:
        """Runs the open calls; returns whether the user allowed all of them."""
        is_allowed = True
        while self._open_calls:
            call = self._open_calls[0]
            tool = next((tool for tool in self.tools if tool.name == call.name), None)
            text = None if tool is None else tool.argument(call.arguments)
            self._screen.call(call.name, call.arguments if text is None else text)
            if tool is None:
                known = ", ".join(tool.name for tool in self.tools)
                result = f"error: there is no tool {call.name!r}; available: {known}"
            elif text is None or self._may_run(tool):
                self._is_running = True
                result = run_call(tool, call.arguments)
            else:
                is_allowed, result = False, "not run: the user did not allow it"
            self._screen.result(result)
            self._close_call(self._fitted(result))
        return is_allowed

    def _fitted(self, result: str) -> str:
        """Returns the result of the first open call, cut to fit the model's context."""
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
            self._screen.remark(f"{tool.name} now runs without asking; /tools resets that")
        return tool.name in self._allowed or answer in ("y", "yes")

    def _close_call(self, result: str) -> None:
        call = self._open_calls.pop(0)
        self._is_running = False
        self.messages.append(_result(call, result))

    def _complete_messages(self) -> None:
        """Completes the messages after an interrupt: partial response, a result for each call."""
        if self._turn is not None:
            self._keep(self._turn, with_calls=False)
        if self._is_running:
            self._close_call("error: the user stopped it; it may have done part of its work")
        while self._open_calls:
            self._close_call("not run: the user interrupted it")


def _result(call: ToolCall, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call.call_id, "content": text}
