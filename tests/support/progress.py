# SPDX-License-Identifier: Apache-2.0
"""progress.py LOG COMMAND...: runs it with its output in LOG, and shows how far it is: n of m, what, the time that passed
and the time that is left if the rest goes on like this. It reads that from the output of ninja and CTest; of other
commands it shows the time alone. On a terminal one line that changes; elsewhere a line now and then, so that a log is
never silent for long. Where the command fails, its last words go to standard error. Exit status: the command's."""

import os
import pathlib
import re
import subprocess
import sys
import threading
import time

SECONDS_BETWEEN_LINES = 25
SECONDS_BETWEEN_CHANGES = 0.2
LAST_WORDS = 40
SHARE_TO_JUDGE_BY = 0.05  # before, ninja builds what takes longest

_NINJA = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_OBJECT = re.compile(r"Building \w+ object (.*?)/?CMakeFiles/[^/]+\.dir/(.*)\.o")
_LINKED = re.compile(r"Linking \w+ .* (\S+)")
_STARTED = re.compile(r"\s*Start +\d+: (\S+)")
_TESTED = re.compile(r"\s*(\d+)/(\d+) Test +#\d+: (\S+)")


class State:
    """What a command's output says of its progress."""

    def __init__(self):
        self.done = self.total = 0
        self.last = ""
        self.running = {}  # of CTest, in the order of their start
        self.words = []  # the last lines that are no progress

    def read(self, line):
        if found := _NINJA.match(line):
            self.done, self.total, self.last = int(found[1]), int(found[2]), _short(found[3])
        elif found := _STARTED.match(line):
            self.running[found[1]] = True
        elif found := _TESTED.match(line):
            self.done, self.total, self.last = int(found[1]), int(found[2]), found[3]
            self.running.pop(found[3], None)
        else:
            self.words = [*self.words, line][-LAST_WORDS:]

    def text(self, seconds):
        parts = [f"{self.done} of {self.total}"] if self.total else []
        parts.append(f"{clock(seconds)} passed")
        if SHARE_TO_JUDGE_BY * self.total <= self.done < self.total:
            parts.append(f"about {clock(seconds * (self.total - self.done) / self.done)} left")
        return ", ".join(parts) + (f": {what}" if (what := next(iter(self.running), self.last)) else "")


def _short(what):
    if found := _OBJECT.match(what):
        return f"{found[1]}/{found[2]}".lstrip("/")
    found = _LINKED.match(what)
    return found[1] if found else what


def clock(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


class Display:
    def __init__(self, stream):
        self.stream = stream
        self.in_place = stream.isatty()
        self.every = SECONDS_BETWEEN_CHANGES if self.in_place else SECONDS_BETWEEN_LINES

    def show(self, text):
        if self.in_place:
            width = os.get_terminal_size(self.stream.fileno()).columns - 1
            self.stream.write(f"\r\033[K{('   ' + text)[:width]}")
        else:
            self.stream.write(f"   {text}\n")
        self.stream.flush()

    def clear(self):
        if self.in_place:
            self.stream.write("\r\033[K")
            self.stream.flush()


def run(log, command, stream=None, errors=None):
    display, errors, state = Display(stream or sys.stdout), errors or sys.stderr, State()
    started, over = time.monotonic(), threading.Event()

    def keep_showing():
        while not over.wait(display.every):
            display.show(state.text(time.monotonic() - started))

    pathlib.Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as file:
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       errors="replace")
        except OSError as error:
            print(f"-- cannot run {command[0]}: {error}", file=errors)
            return 127
        shower = threading.Thread(target=keep_showing)
        shower.start()
        with process:
            for line in process.stdout:
                file.write(line)
                state.read(line.rstrip("\n"))
        status = process.returncode
        over.set()
        shower.join()
        display.clear()
    if status != 0:
        print(*state.words, f"-- failed: {' '.join(command)} (all of it: {log})", sep="\n", file=errors)
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
