"""Commands of one loop, kept until no step is in flight; and the engine's pause."""

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
    """Runs commands in order of arrival. Used by the step thread.

    A pause is a state of the loop: running --Pause--> settling (live requests end, new ones are
    held) --> paused --Resume--> running. `Pause(mode="keep")` skips settling.

    Args:
        has_live: returns whether live requests remain that a pause waits for.
        abort_live: aborts all live requests, given the present time.
        submit_held: submits the requests that the pause has held.
        load: returns the loop's load.
        run_command: runs any command except those of the pause.

    Attributes:
        is_settling: whether a pause waits for live requests to end.
        is_paused: whether no step is planned.
        is_draining: whether the engine is shutting down; it cannot be paused then.
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
        """Whether new requests are held, because a pause arrived before them."""
        return self.is_settling or any(
            isinstance(command, Pause) and command.mode != "keep" for command, _ in self._commands
        )

    @property
    def may_plan(self) -> bool:
        """Whether steps may be planned.

        A queued command waits for the steps in flight. A settling pause lets steps run until it can
        take effect.
        """
        return self.is_settling or not (self.is_paused or self._commands)

    def put(self, command: Command, reply: Reply) -> None:
        """Queues a command; `reply` is called with its result."""
        self._commands.append((command, reply))

    def run(self, now: float) -> bool:
        """Runs the commands that can run with no step in flight; returns whether it ran any."""
        num_waiting = len(self._commands)
        while self._commands:
            command, reply = self._commands[0]
            if isinstance(command, Pause) and not self._settle(command, now):
                break
            self._commands.popleft()
            reply(self._execute(command))
        return len(self._commands) < num_waiting

    def drain(self) -> None:
        """Ends a pause and refuses further ones, because the engine is shutting down."""
        self.is_draining = True
        self._resume()

    def _settle(self, command: Pause, now: float) -> bool:
        """Returns whether the pause can take effect now. If not, steps continue until it can."""
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
