"""Commands of one loop: kept until no step is in flight, and the pause, which outlasts them."""

from collections import deque
from collections.abc import Callable

from openinfer_contract import (
    Command,
    CommandDone,
    CommandFailed,
    CommandResult,
    Load,
    Pause,
    Resume,
)

Reply = Callable[[CommandResult], None]


class CommandQueue:
    """Runs commands in order of arrival. For the step thread.

    Pause is a state of the loop: running --Pause--> settling (live requests end, new ones are
    held back) --> paused --Resume--> running; `Pause(keep)` skips settling.

    Args:
        has_live: whether requests are left that a pause waits for.
        abort_live: aborts them all, at a time.
        submit_held: hands over the requests that were held back.
        load: what the loop holds.
        run_command: runs any command but those of the pause.

    Attributes:
        is_settling: whether a pause waits for live requests.
        is_paused: whether no step is planned.
        is_draining: whether the loop comes to its end; there is no pause then.
    """

    def __init__(
        self,
        *,
        has_live: Callable[[], bool],
        abort_live: Callable[[float], None],
        submit_held: Callable[[], None],
        load: Callable[[], Load],
        run_command: Callable[[Command], CommandResult],
    ) -> None:
        self.is_settling = False
        self.is_paused = False
        self.is_draining = False
        self._has_live = has_live
        self._abort_live = abort_live
        self._submit_held = submit_held
        self._load = load
        self._run_command = run_command
        self._commands: deque[tuple[Command, Reply]] = deque()

    def __len__(self) -> int:
        return len(self._commands)

    @property
    def is_holding_new(self) -> bool:
        """Whether new requests come after a pause that the live ones still come before."""
        return self.is_settling or any(
            isinstance(command, Pause) and command.mode != "keep" for command, _ in self._commands
        )

    @property
    def may_plan(self) -> bool:
        """Whether steps go on; a command waits for those in flight, a settling pause for all."""
        return self.is_settling or not (self.is_paused or self._commands)

    def put(self, command: Command, reply: Reply) -> None:
        """Keeps a command; `reply` is called once it has run."""
        self._commands.append((command, reply))

    def run(self, now: float) -> bool:
        """Runs the commands whose turn it is, with no step in flight; whether there was one."""
        num_waiting = len(self._commands)
        while self._commands:
            command, reply = self._commands[0]
            if isinstance(command, Pause) and not self._settle(command, now):
                break
            self._commands.popleft()
            reply(self._execute(command))
        return len(self._commands) < num_waiting

    def drain(self) -> None:
        """The loop comes to its end; so does a pause."""
        self.is_draining = True
        self._resume()

    def _settle(self, command: Pause, now: float) -> bool:
        """Whether the pause can take effect; if not, steps go on until it can."""
        if command.mode == "keep" or self.is_paused or self.is_draining:
            return True
        if not self.is_settling:
            self.is_settling = True
            if command.mode == "abort":
                self._abort_live(now)
        return not self._has_live()

    def _execute(self, command: Command) -> CommandResult:
        if isinstance(command, Pause):
            if self.is_draining:
                return CommandFailed(kind="failed", message="the engine is shutting down")
            self.is_paused = True
            self._end_settling()
        elif isinstance(command, Resume):
            self._resume()
        else:
            return self._run_command(command)
        return CommandDone(load=self._load())

    def _resume(self) -> None:
        self.is_paused = False
        self._end_settling()

    def _end_settling(self) -> None:
        self.is_settling = False
        self._submit_held()
