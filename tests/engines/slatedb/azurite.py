"""Azurite, an emulator of Azure Blob Storage, for tests. It comes from npm: ``npm install -g azurite``."""

from __future__ import annotations

import os
import shutil
import subprocess
from base64 import b64decode, b64encode
from email.utils import formatdate
from hashlib import sha256
from hmac import digest
from http.client import HTTPConnection
from threading import Thread

from tests.support.bound import BOUND

COMMAND = "DAYJOB_TEST_AZURITE"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of every Azurite, which its documentation publishes."""

CREDENTIALS = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}
CONTAINER = "container"


def find() -> str | None:
    """Return the command that starts the blob service, if it is installed."""
    return os.environ.get(COMMAND) or shutil.which("azurite-blob")


class Azurite:
    """A running emulator with an empty container. It keeps everything in memory."""

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(
            [
                command, "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", "0",
                "--skipApiVersionCheck", "--disableTelemetry",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.port = self._read_port()

    def _read_port(self) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "successfully listens" in line:
                self._log = Thread(target=self._process.stdout.read, daemon=True)  # Every request.
                self._log.start()
                return int(line.rpartition(":")[2])
        raise AssertionError("Azurite has ended without a port")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def make_container(self, name: str = CONTAINER) -> None:
        date, version = formatdate(usegmt=True), "2021-08-06"
        signed = (
            f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{version}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        )
        signature = b64encode(digest(b64decode(KEY), signed.encode(), sha256)).decode()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        connection.request(
            "PUT", f"/{ACCOUNT}/{name}?restype=container",
            headers={
                "x-ms-date": date, "x-ms-version": version, "Content-Length": "0",
                "Authorization": f"SharedKey {ACCOUNT}:{signature}",
            },
        )  # fmt: skip
        assert connection.getresponse().status == 201
        connection.close()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(BOUND)
        self._log.join(BOUND)
        assert self._process.stdout is not None
        self._process.stdout.close()
