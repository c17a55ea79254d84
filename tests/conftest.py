"""What holds for all tests: Ctrl-C works in the processes that they start."""

import signal

# Who starts the tests in the background of a shell has them ignore Ctrl-C, and children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
