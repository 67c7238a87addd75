from dayjob import Context
from dayjob.contrib.django import task
from shop.models import Order


@task
def ship(ctx: Context, order_id: int) -> str:
    order = Order.objects.get(pk=order_id)
    ctx.progress(0.5, "packed")
    order.shipped = True
    order.save()
    return order.name


@task(every=60)
async def report_open() -> int:
    return await Order.objects.filter(shipped=False).acount()
