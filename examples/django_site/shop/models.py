from django.db import models


class Order(models.Model):
    name = models.CharField(max_length=100)
    job = models.CharField(max_length=36, blank=True)
    shipped = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.name
