"""A permission to try prompts in the admin. It changes no table: ``migrate`` creates the permission at its end."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("convmemory", "0011_cached_tokens")]
    operations = [
        migrations.AlterModelOptions(
            "session",
            {
                "permissions": [
                    ("write_any_role", "Can write messages of any role through the API"),
                    ("try_prompts", "Can try prompts and models with a session, in the admin"),
                ],
                "verbose_name": "session",
                "verbose_name_plural": "sessions",
            },
        ),
    ]
