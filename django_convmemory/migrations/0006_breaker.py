import django_convmemory.fields
from django.conf import settings
from django.db import migrations, models
from django.utils import timezone


def drop_parts(apps, schema_editor):
    """Invalidate the parts of messages that are not folded to their end.

    Without their ``part_end``, a rebuild would continue after such a part as if the whole message were in it.
    """
    summaries = apps.get_model('convmemory', 'Summary').objects.using(schema_editor.connection.alias)
    parts = summaries.filter(building=True, part_end__isnull=False, invalidated_at__isnull=True)
    parts.update(invalidated_at=timezone.now())


class Migration(migrations.Migration):

    dependencies = [
        ('convmemory', '0005_name_hash'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='AliasState',
            fields=[
                ('alias', django_convmemory.fields.ExactCharField(max_length=100, primary_key=True, serialize=False, verbose_name='alias')),
                ('failures', models.IntegerField(default=0, verbose_name='failures in a row')),
                ('last_session', models.BigIntegerField(blank=True, null=True, verbose_name='last session')),
                ('since', models.DateTimeField(blank=True, null=True, verbose_name='since')),
                ('until', models.DateTimeField(blank=True, null=True, verbose_name='until')),
                ('reason', models.CharField(blank=True, choices=[('outage', 'the model does not answer'), ('rate_limit', 'the provider takes no more calls'), ('misconfigured', 'the model is misconfigured')], default='', max_length=16, verbose_name='reason')),
                ('error', models.TextField(blank=True, default='', verbose_name='error')),
                ('threshold', models.CharField(blank=True, default='', max_length=64, verbose_name='threshold')),
                ('compared_id', models.BigIntegerField(blank=True, null=True, verbose_name='compared through')),
            ],
            options={
                'verbose_name': 'state of a memory',
                'verbose_name_plural': 'states of memories',
            },
        ),
        migrations.AddField(
            model_name='session',
            name='rebuild_after',
            field=models.DateTimeField(blank=True, null=True, verbose_name='rebuild after'),
        ),
        migrations.AddField(
            model_name='summary',
            name='carried',
            field=models.BooleanField(db_default=False, default=False, verbose_name='carried over'),
        ),
        migrations.AddField(
            model_name='summary',
            name='cut',
            field=models.BooleanField(db_default=False, default=False, verbose_name='cut'),
        ),
        migrations.AddField(
            model_name='summary',
            name='part_end',
            field=models.BigIntegerField(blank=True, null=True, verbose_name='part ends at'),
        ),
        migrations.AddField(
            model_name='summary',
            name='stand_in',
            field=models.BooleanField(db_default=False, default=False, verbose_name='stands in'),
        ),
        migrations.AlterField(
            model_name='summary',
            name='building',
            field=models.BooleanField(default=False, verbose_name='not finished'),
        ),
        migrations.AddIndex(
            model_name='session',
            index=models.Index(fields=['alias', 'rebuild_after'], name='convmemory_session_rebuild'),
        ),
        # The last operation, so that it is the first one backwards: the columns are still there.
        migrations.RunPython(migrations.RunPython.noop, drop_parts, hints={'model_name': 'summary'}),
    ]
