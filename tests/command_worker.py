"""command_worker.py FILE WORD…: the command, in a process that can be killed: its number is in FILE."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from decondense.cli import main

# a shell that starts the tests in the background lets them, and so this process, ignore Ctrl-C
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
Path(sys.argv[1]).write_text(str(os.getpid()))
main(sys.argv[2:])
