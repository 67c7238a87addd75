"""Run the site, with a worker in another process."""

import argparse
import signal
import subprocess
import sys

from werkzeug.serving import make_server

from examples.flask_site import create_app

parser = argparse.ArgumentParser(prog="python -m examples.flask_site", description=__doc__)
parser.add_argument("--port", type=int, default=5000)
server = make_server("127.0.0.1", parser.parse_args().port, create_app(), threaded=True)
worker = subprocess.Popen(
    [sys.executable, "-m", "flask", "--app", "examples.flask_site:create_app", "dayjob", "worker"]
)
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print(f"Newsletter on http://127.0.0.1:{server.port}", flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    pass
finally:
    worker.terminate()
    worker.wait()
