from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('convmemory', '0004_signed_counters'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='session',
            name='convmemory_session_handle',
        ),
        migrations.RenameField(
            model_name='session',
            old_name='handle',
            new_name='name_hash',
        ),
        migrations.AlterField(
            model_name='session',
            name='name_hash',
            field=models.CharField(editable=False, max_length=64, verbose_name='name hash'),
        ),
        migrations.AddConstraint(
            model_name='session',
            constraint=models.UniqueConstraint(fields=('name_hash',), name='convmemory_session_name_hash'),
        ),
    ]
