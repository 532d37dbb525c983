"""What every test relies on."""

import signal
import threading

import torch

torch.set_num_threads(1)
# A shell has what it starts in the background ignore Ctrl-C, and so would all processes that tests start and interrupt.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
