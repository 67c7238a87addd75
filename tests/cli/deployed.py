"""An app whose code is about to be deployed, for ``dayjob check``."""

from __future__ import annotations

from dayjob import App

app = App("memory://deployed")


@app.task(name="mail")
def mail(to: str) -> None: ...
