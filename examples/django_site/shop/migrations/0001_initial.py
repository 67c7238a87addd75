# ruff: noqa: RUF012 - as Django writes migrations
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("job", models.CharField(blank=True, max_length=36)),
                ("shipped", models.BooleanField(default=False)),
            ],
        ),
    ]
