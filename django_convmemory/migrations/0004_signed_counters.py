"""Let the counters be signed, without a check of each that it is not negative.

PostgreSQL reads and carries out the checks of a table with each statement that writes to it, and there were nineteen of
a session's row: a seventh of what an append took. ``convmemory_check`` compares the counters with the messages instead.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('convmemory', '0003_indexes'),
    ]

    operations = [
        migrations.AlterField(
            model_name='message',
            name='answers',
            field=models.BigIntegerField(blank=True, null=True, verbose_name='answers'),
        ),
        migrations.AlterField(
            model_name='message',
            name='position',
            field=models.BigIntegerField(verbose_name='position'),
        ),
        migrations.AlterField(
            model_name='message',
            name='tokens',
            field=models.IntegerField(verbose_name='tokens'),
        ),
        migrations.AlterField(
            model_name='message',
            name='tokens_through',
            field=models.BigIntegerField(verbose_name='tokens through'),
        ),
        migrations.AlterField(
            model_name='session',
            name='answered_position',
            field=models.BigIntegerField(default=0, editable=False),
        ),
        migrations.AlterField(
            model_name='session',
            name='attempts',
            field=models.IntegerField(default=0, verbose_name='attempts'),
        ),
        migrations.AlterField(
            model_name='session',
            name='call_position',
            field=models.BigIntegerField(default=0, verbose_name='last tool calls at'),
        ),
        migrations.AlterField(
            model_name='session',
            name='covered_count',
            field=models.BigIntegerField(default=0, verbose_name='covered messages'),
        ),
        migrations.AlterField(
            model_name='session',
            name='covered_position',
            field=models.BigIntegerField(default=0, verbose_name='covered through'),
        ),
        migrations.AlterField(
            model_name='session',
            name='covered_tokens',
            field=models.BigIntegerField(default=0, verbose_name='covered tokens'),
        ),
        migrations.AlterField(
            model_name='session',
            name='current_version',
            field=models.BigIntegerField(default=0, verbose_name='current version'),
        ),
        migrations.AlterField(
            model_name='session',
            name='due_revision',
            field=models.BigIntegerField(default=0, editable=False),
        ),
        migrations.AlterField(
            model_name='session',
            name='epoch',
            field=models.BigIntegerField(default=0, verbose_name='epoch'),
        ),
        migrations.AlterField(
            model_name='session',
            name='fork_position',
            field=models.BigIntegerField(blank=True, null=True, verbose_name='forked at'),
        ),
        migrations.AlterField(
            model_name='session',
            name='last_position',
            field=models.BigIntegerField(default=0, verbose_name='last position'),
        ),
        migrations.AlterField(
            model_name='session',
            name='last_version',
            field=models.BigIntegerField(default=0, verbose_name='last version'),
        ),
        migrations.AlterField(
            model_name='session',
            name='newest_position',
            field=models.BigIntegerField(default=0, verbose_name='newest exchange begins at'),
        ),
        migrations.AlterField(
            model_name='session',
            name='pinned_count',
            field=models.SmallIntegerField(default=0, verbose_name='pinned messages'),
        ),
        migrations.AlterField(
            model_name='session',
            name='pinned_tokens',
            field=models.BigIntegerField(default=0, verbose_name='pinned tokens'),
        ),
        migrations.AlterField(
            model_name='session',
            name='revision',
            field=models.BigIntegerField(default=0, verbose_name='revision'),
        ),
        migrations.AlterField(
            model_name='session',
            name='settled_tokens',
            field=models.BigIntegerField(default=0, verbose_name='tokens before the newest exchange'),
        ),
        migrations.AlterField(
            model_name='session',
            name='unpinned_count',
            field=models.BigIntegerField(default=0, verbose_name='unpinned messages'),
        ),
        migrations.AlterField(
            model_name='session',
            name='unpinned_tokens',
            field=models.BigIntegerField(default=0, verbose_name='unpinned tokens'),
        ),
    ]
