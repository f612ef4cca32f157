from django.db import migrations, models


def key():
    return ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012
        migrations.CreateModel("Order", [key(), ("number", models.IntegerField(default=0))]),
        migrations.CreateModel("Booking", [key(), ("order", models.IntegerField())]),
    ]
