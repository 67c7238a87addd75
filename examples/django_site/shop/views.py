from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render

from shop.models import Order
from shop.tasks import ship


def orders(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        with transaction.atomic():  # The order and its job, or neither.
            order = Order.objects.create(name=request.POST["name"])
            order.job = ship.enqueue(order.pk).id
            order.save()
        return redirect("/")
    return render(request, "shop/orders.html", {"orders": Order.objects.order_by("-pk")[:20]})


def order(request: HttpRequest, pk: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=pk)
    return JsonResponse({"name": order.name, "shipped": order.shipped, "job": ship.job(order.job).status()})
