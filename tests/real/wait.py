"""Waits until a server is healthy; fails when its process has ended, or after ten minutes.

usage: python wait.py HEALTH_URL PROCESS_ID
"""

import os
import sys
import time
import urllib.error
import urllib.request

url, process = sys.argv[1], int(sys.argv[2])
deadline = time.monotonic() + 600
while time.monotonic() < deadline:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        sys.exit(f"error: the server of {url} has ended")
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            if reply.status == 200:
                sys.exit(0)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        pass
    time.sleep(0.5)
sys.exit(f"error: {url} was not healthy within ten minutes")
