"""Program on a terminal of 80x24 cells: waits for texts on its screen, presses keys and sends signals.

    python3 top.py STEP... -- COMMAND...

Steps: wait=TEXT (until the screen contains it), gone=TEXT (until it does not), send=KEYS, signal=NUMBER,
hangup=STATUS (closes the terminal, and waits for the end), exit=STATUS (waits for the end, and checks that the modes of
the terminal are those of before). Exits with status 1 if a step takes longer than LIMIT.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

# Time limit of each step, seconds, on a machine with other load.
LIMIT = 60.0
ROWS, COLUMNS = 24, 80
SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()].|\x1b[=>78]")


class Screen:
    """Cells of the terminal, as far as flue uses it: cursor positions, clearing, text."""

    def __init__(self):
        self.cells = [[" "] * COLUMNS for _ in range(ROWS)]
        self.row = self.column = 0
        self.rest = ""

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def feed(self, text):
        text = self.rest + text
        self.rest = ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self.put(text[at])
                at += 1
                continue
            found = SEQUENCE.match(text, at)
            if not found:
                # The sequence continues in the next piece.
                self.rest = text[at:]
                return
            at = found.end()
            numbers, letter = found.group(1) or "", found.group(2)
            if letter == "H":
                row, _, column = numbers.partition(";")
                self.row, self.column = int(row or 1) - 1, int(column or 1) - 1
            elif letter == "K" and self.row < ROWS:
                # 2: the whole line, otherwise from the cursor.
                start = 0 if numbers == "2" else self.column
                self.cells[self.row][start:] = [" "] * (COLUMNS - start)
            elif letter == "J":
                self.cells = [[" "] * COLUMNS for _ in range(ROWS)]

    def put(self, letter):
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self.row = min(self.row + 1, ROWS - 1)
        elif self.row < ROWS and self.column < COLUMNS:
            self.cells[self.row][self.column] = letter
            self.column += 1


def main():
    cut = sys.argv.index("--")
    steps, command = sys.argv[1:cut], sys.argv[cut + 1 :]
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    before = termios.tcgetattr(slave)

    def own_terminal():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    environment = dict(os.environ, TERM="xterm-256color")
    child = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal, env=environment
    )
    screen = Screen()

    def pump(limit):
        if select.select([master], [], [], limit)[0]:
            screen.feed(os.read(master, 65536).decode("utf-8", "replace"))

    def until(condition, step):
        deadline = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > deadline:
                child.kill()
                sys.exit(f"{step}: not within {LIMIT} s\n{screen.text()}")
            pump(0.02)

    for step in steps:
        name, _, value = step.partition("=")
        if name == "wait":
            until(lambda: value in screen.text(), step)
        elif name == "gone":
            until(lambda: value not in screen.text(), step)
        elif name == "send":
            os.write(master, value.encode())
        elif name == "signal":
            child.send_signal(signal.Signals(int(value)))
        elif name == "hangup":
            os.close(master)
            if child.wait(LIMIT) != int(value):
                sys.exit(f"{step}: exit status {child.returncode}")
        elif name == "exit":
            until(lambda: child.poll() is not None, step)
            pump(0)
            if child.returncode != int(value):
                sys.exit(f"{step}: exit status {child.returncode}\n{screen.text()}")
            if termios.tcgetattr(slave) != before:
                sys.exit("the modes of the terminal are not restored")
        else:
            sys.exit(f"unknown step {step}")


main()
