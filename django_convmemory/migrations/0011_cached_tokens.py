"""How many tokens of a call came from the provider's cache.

The column may be NULL, so no database writes a row of the table again, and processes of an earlier release go on
recording calls.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("convmemory", "0010_lists")]
    operations = [
        migrations.AddField(
            "attempt", "cached_tokens", models.PositiveIntegerField(blank=True, null=True, verbose_name="cached tokens")
        ),
    ]
