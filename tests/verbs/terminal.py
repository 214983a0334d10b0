"""Program in the foreground of a terminal, under a shell with job control: Ctrl-Z, fg and Ctrl-C.

    python3 terminal.py NAMES SIGNAL COMMAND...

The command runs `rping -c -v` under flue, without an end. NAMES: processes of its group, separated by commas.
SIGNAL: number of the signal that has stopped it, as the shell reports it. Exits with status 1 if a step takes longer
than LIMIT.
"""

import os
import pty
import re
import select
import signal
import sys
import termios
import time

# Time limit of each step, seconds, on a machine with other load.
LIMIT = 30.0
# Characters of the terminal for the signals.
STOP, INTERRUPT = b"\x1a", b"\x03"
# The shell takes the terminal back from a job that stops or ends.
SHELL = r"""
trap : INT
set -m
"$@"
echo "status $?"
read line
fg
echo "status $?"
"""


def states(group):
    """Returns the states of the processes of a group, by name."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as stat:
                name, rest = stat.read().split("(", 1)[1].rsplit(") ", 1)
        except OSError:  # it has ended
            continue
        state, _, process_group, *_ = rest.split()
        if int(process_group) == group:
            found[name] = state
    return found


class Terminal:
    def __init__(self, command):
        self.said = b""
        self.shell, self.master = pty.fork()
        if self.shell == 0:
            # A shell cannot trap, and a job inherits, a signal that this process was started with ignored.
            for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
                signal.signal(ignored, signal.SIG_DFL)
            os.execvp("sh", ["sh", "-c", SHELL, "sh", *command])

    def type(self, octets):
        os.write(self.master, octets)

    def until(self, what, is_so):
        """Reads the terminal's output until `is_so` returns true."""
        deadline = time.monotonic() + LIMIT
        while not is_so():
            if select.select([self.master], [], [], 0.01)[0]:
                self.said += os.read(self.master, 65536)
            if time.monotonic() > deadline:
                sys.exit(f"{what}: not within {LIMIT} s\n{self.said[-2000:].decode(errors='replace')}")

    def pings(self):
        return len(re.findall(rb"ping data", self.said))

    def has_status(self, status):
        return f"status {status}\r\n".encode() in self.said

    def foreground(self):
        return os.tcgetpgrp(self.master)


def main():
    names, stop, terminal = sys.argv[1].split(","), int(sys.argv[2]), Terminal(sys.argv[3:])
    characters = termios.tcgetattr(terminal.master)[6]
    assert (characters[termios.VSUSP], characters[termios.VINTR]) == (STOP, INTERRUPT)
    terminal.until("first pings", lambda: terminal.pings() >= 10)
    job = terminal.foreground()
    assert job != terminal.shell and sorted(states(job)) == names, states(job)

    terminal.type(STOP)
    terminal.until("status of a stopped job", lambda: terminal.has_status(128 + stop))
    assert terminal.foreground() == terminal.shell
    assert states(job) == dict.fromkeys(names, "T"), states(job)

    before = terminal.pings()
    terminal.type(b"\n")
    terminal.until("pings after fg", lambda: terminal.pings() >= before + 10)
    assert terminal.foreground() == job

    terminal.type(INTERRUPT)
    terminal.until("status of an interrupted job", lambda: terminal.has_status(128 + 2))
    assert states(job) == {}, states(job)


if __name__ == "__main__":
    main()
