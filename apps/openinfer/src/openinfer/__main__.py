"""`openinfer`, and `python -m openinfer`."""

import sys

from openinfer._interrupts import end_quietly, forget_interrupts, leave_on_interrupt


def main() -> int:
    """Runs the command line and returns its exit status."""
    leave_on_interrupt()
    from openinfer.commands._cli import main as run

    try:
        return run()
    finally:
        end_quietly()
        # During Python's own shutdown, too, Ctrl-C ends the process at once.
        leave_on_interrupt()
        forget_interrupts()


if __name__ == "__main__":
    sys.exit(main())
