"""A newsletter on Flask: an application factory, jobs with the application context, the dashboard."""

import os
from pathlib import Path

from flask import Flask, Response, current_app, render_template, request

from dayjob import App, Context, Retry
from dayjob.contrib.flask import Dayjob, event_stream, job_or_404

jobs = App("sqlite:///newsletter.db")
dayjob = Dayjob(jobs)


@jobs.task(queue="email", retry=Retry.exponential(attempts=5))
def send(address: str, subject: str) -> None:
    """Send a mail: here, append it to the outbox of the site."""
    with Path(current_app.config["OUTBOX"]).open("a") as outbox:
        outbox.write(f"{subject!r} to {address!r}\n")


@jobs.task
def publish(ctx: Context, subject: str, addresses: list[str]) -> int:
    """Enqueue a mail for each address. The mails are stored with the end of this job: all, or none."""
    for number, address in enumerate(addresses, start=1):
        ctx.then(send.bind(address, subject))
        ctx.progress(number / len(addresses), address)
    return len(addresses)


def create_app() -> Flask:
    web = Flask(__name__)
    web.config["OUTBOX"] = os.environ.get("OUTBOX", "outbox.txt")
    web.config["DAYJOB_URL"] = os.environ.get("DAYJOB_URL", "sqlite:///newsletter.db")
    dayjob.init_app(web)
    web.register_blueprint(dayjob.dashboard(), url_prefix="/jobs")  # Local clients only, without a token.

    @web.get("/")
    def page() -> str:
        return render_template("page.html")

    @web.post("/issues")
    def issue() -> tuple[dict[str, str], int]:
        addresses = request.form["addresses"].split()
        return {"id": publish.enqueue(request.form["subject"], addresses).id}, 202

    @web.get("/issues/<id>/events")
    def follow(id: str) -> Response:
        return event_stream(job_or_404(publish, id))

    return web
