"""The orders, and the job that ships one. Both are in one database: ``DATABASE_URL``, or a SQLite file."""

import asyncio
import os

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dayjob import App, Context, Retry

url = make_url(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))
driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}[url.get_backend_name()]
engine = create_async_engine(url.set(drivername=driver))
new_session = async_sessionmaker(engine, expire_on_commit=False)
jobs = App(url.render_as_string(hide_password=False))

STEPS = ("packed", "labelled", "handed to the carrier")


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    job: Mapped[str] = mapped_column(default="")
    shipped: Mapped[bool] = mapped_column(default=False)


@jobs.task(retry=Retry.exponential(attempts=5), timeout=60)
async def ship(ctx: Context, order_id: int) -> str:
    """Ship an order. A job may run twice, so a second run changes nothing."""
    for number, step in enumerate(STEPS, start=1):
        await asyncio.sleep(0.2)  # The work takes its time here, outside of a transaction.
        ctx.progress(number / len(STEPS), step)
    async with new_session.begin() as session:
        order = await session.get_one(Order, order_id)
        order.shipped = True
    return f"{order.item} for order {order.id}"


async def create_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
