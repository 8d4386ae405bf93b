"""What every test file needs: signals as in a terminal.

A runner that works in the background (nohup, CI, `&`) passes on ignored
signals, and lockstep honours those; the tests send them, so they start from
the defaults.
"""

import signal

for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
