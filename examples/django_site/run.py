"""Migrate the database, then run the server and a worker until Ctrl-C: ``python run.py [PORT]``."""

import os
import signal
import subprocess
import sys
from pathlib import Path

MANAGE = [sys.executable, str(Path(__file__).with_name("manage.py"))]
ADMIN = {"DJANGO_SUPERUSER_USERNAME": "admin", "DJANGO_SUPERUSER_PASSWORD": "admin"}


def main(port: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    subprocess.run([*MANAGE, "migrate", "--verbosity", "0"], check=True)
    subprocess.run(
        [*MANAGE, "createsuperuser", "--noinput", "--email", "admin@example.com"],
        env=os.environ | ADMIN, capture_output=True, check=False,  # It fails if the user exists.
    )  # fmt: skip
    running = [
        subprocess.Popen([*MANAGE, "dayjob", "worker", "--log-jobs"]),
        subprocess.Popen([*MANAGE, "runserver", "--noreload", f"127.0.0.1:{port}"]),
    ]
    try:
        os.wait()  # Until one of them ends.
    except KeyboardInterrupt:
        pass
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "8000")
