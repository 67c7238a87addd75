from django.test import TestCase

from dayjob.contrib.django import app
from dayjob.testing import drain, sandbox
from shop.models import Order
from shop.tasks import report_open


class Orders(TestCase):
    def setUp(self) -> None:
        self.enterContext(sandbox(app))

    def test_an_order_is_shipped(self) -> None:
        self.client.post("/", {"name": "tea"})
        report = report_open.enqueue()
        assert drain(app) == 2
        order = Order.objects.get()
        assert order.shipped
        assert self.client.get(f"/orders/{order.pk}").json()["job"] == "done"
        assert report.result(timeout=0) == 0
