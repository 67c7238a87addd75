"""The site: a page with the orders and their progress, and the dashboard of the jobs under /jobs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from dayjob import JobHandle
from dayjob.contrib.sqlalchemy import in_session
from dayjob.contrib.starlette import event_stream, job_of, lifespan
from dayjob.dashboard import dashboard
from examples.shop.orders import Order, create_tables, engine, jobs, new_session, ship


@asynccontextmanager
async def own_lifespan(_: FastAPI) -> AsyncIterator[None]:
    await create_tables()
    yield
    await engine.dispose()


async def open_session() -> AsyncIterator[AsyncSession]:
    """The session of a request. Without a commit, its end is a rollback."""
    async with new_session() as session:
        yield session


web = FastAPI(title="Shop", lifespan=lifespan(jobs, worker=True, inner=own_lifespan))
web.mount("/jobs", dashboard(jobs))  # Without a token it answers only clients on this machine.

RequestSession = Annotated[AsyncSession, Depends(open_session)]
Shipment = Annotated[JobHandle[str], Depends(job_of(ship))]


@web.get("/")
async def page() -> FileResponse:
    return FileResponse(Path(__file__).parent / "page.html")


@web.get("/orders")
async def orders(session: RequestSession) -> list[dict[str, Any]]:
    found = await session.scalars(select(Order).order_by(Order.id.desc()).limit(20))
    return [{"id": each.id, "item": each.item, "job": each.job, "shipped": each.shipped} for each in found]


@web.post("/orders", status_code=202)
async def order(item: Annotated[str, Body(embed=True)], session: RequestSession) -> dict[str, Any]:
    """Store an order and its job in one transaction: both, or neither."""
    new = Order(item=item)
    session.add(new)
    await session.flush()
    handle = await in_session(session, ship).aenqueue(new.id)
    new.job = handle.id
    if item == "unicorn":
        raise HTTPException(409, "Unicorns are sold out.")
    await session.commit()
    return {"id": new.id, "job": handle.id}


@web.get("/shipments/{id}/events")
async def follow(request: Request, shipment: Shipment) -> Response:
    return event_stream(request, shipment)
