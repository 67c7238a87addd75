"""Calls that are wrong. Both type checkers refuse each line that ends in ``# wrong``, and no other."""

from __future__ import annotations

from dayjob import App, Context
from dayjob.testing import assert_enqueued

app = App("memory://")


@app.task
async def fetch(url: str, *, tries: int = 3) -> bytes:
    return b""


@app.task
def double(value: int) -> int:
    return value * 2


@app.task(queue="email")
async def send_email(ctx: Context, to: str, subject: str = "") -> str:
    return to


@app.task(colour="red")  # wrong
def unknown_option() -> None: ...


@app.task(pool="fiber")  # wrong
def unknown_pool() -> None: ...


def synchronous() -> None:
    double.enqueue("2")  # wrong
    double.enqueue()  # wrong
    double.enqueue(1, 2)  # wrong
    double.enqueue(1, extra=2)  # wrong
    double.bind("2")  # wrong
    double.bind()  # wrong
    double.using(priority=5).enqueue("2")  # wrong
    double.using(priority=5).enqueue()  # wrong
    double.using(priority=5).bind(value=None)  # wrong
    double.using(priority="high")  # wrong
    double.using(colour="red")  # wrong
    double.enqueue_many([[1]])  # wrong
    double.enqueue_many(["text"])  # wrong
    double("2")  # wrong
    fetch.enqueue("https://", 5)  # wrong
    fetch.enqueue("https://", tries="5")  # wrong
    send_email.enqueue(5)  # wrong
    send_email.enqueue("ada", body="hi")  # wrong
    text: str = double.enqueue(2).result()  # wrong
    double(2).enqueue()  # wrong
    double.delay(2)  # wrong
    double.apply_async((2,))  # wrong
    double.enqueue(2, delay=5)  # wrong
    text = double.job("id").result()  # wrong
    double.job(5)  # wrong
    app.send("shop.mail", colour="red")  # wrong
    app.send("shop.mail", ["ada"])  # wrong
    assert_enqueued(double, "2")  # wrong
    assert_enqueued(send_email, "ada", body="hi")  # wrong
    print(text)


async def asynchronous() -> None:
    await double.aenqueue("2")  # wrong
    await double.aenqueue()  # wrong
    await double.aenqueue(1, extra=2)  # wrong
    await double.using(delay=1).aenqueue("2")  # wrong
    await fetch.aenqueue(url=5)  # wrong
    await fetch.aenqueue(tries=5)  # wrong
    await send_email.aenqueue(subject="hi")  # wrong
    await double.enqueue(2)  # wrong
    await double(2)  # wrong
    fetch.aenqueue("https://").aresult()  # wrong
    text: str = await (await fetch.aenqueue("https://")).aresult()  # wrong
    number: int = await send_email("ada")  # wrong
    print(text, number)
