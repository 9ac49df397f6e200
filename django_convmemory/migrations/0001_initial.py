import django.db.models.deletion
import django.utils.timezone
import django_convmemory.fields
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Session',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('public_id', models.UUIDField(default=uuid.uuid4, editable=False, unique=True, verbose_name='public id')),
                ('alias', django_convmemory.fields.ExactCharField(max_length=100, verbose_name='alias')),
                ('visitor', django_convmemory.fields.ExactCharField(blank=True, default='', max_length=64, verbose_name='visitor')),
                ('key', django_convmemory.fields.ExactCharField(max_length=255, verbose_name='key')),
                ('handle', models.CharField(editable=False, max_length=64, verbose_name='handle')),
                ('title', models.CharField(blank=True, default='', max_length=255, verbose_name='title')),
                ('metadata', models.JSONField(blank=True, default=dict, verbose_name='metadata')),
                ('last_position', models.PositiveBigIntegerField(default=0, verbose_name='last position')),
                ('unpinned_count', models.PositiveBigIntegerField(default=0, verbose_name='unpinned messages')),
                ('unpinned_tokens', models.PositiveBigIntegerField(default=0, verbose_name='unpinned tokens')),
                ('settled_tokens', models.PositiveBigIntegerField(default=0, verbose_name='tokens before the newest exchange')),
                ('newest_position', models.PositiveBigIntegerField(default=0, verbose_name='newest exchange begins at')),
                ('pinned', models.TextField(blank=True, default='', verbose_name='pinned positions')),
                ('pinned_count', models.PositiveSmallIntegerField(default=0, verbose_name='pinned messages')),
                ('pinned_tokens', models.PositiveBigIntegerField(default=0, verbose_name='pinned tokens')),
                ('call_position', models.PositiveBigIntegerField(default=0, verbose_name='last tool calls at')),
                ('answered_position', models.PositiveBigIntegerField(default=0, editable=False)),
                ('exchange_calls', models.TextField(blank=True, default='', verbose_name='calls of the newest tool exchange')),
                ('open_calls', models.TextField(blank=True, default='', verbose_name='calls without a result')),
                ('last_version', models.PositiveBigIntegerField(default=0, verbose_name='last version')),
                ('current_version', models.PositiveBigIntegerField(default=0, verbose_name='current version')),
                ('covered_position', models.PositiveBigIntegerField(default=0, verbose_name='covered through')),
                ('covered_count', models.PositiveBigIntegerField(default=0, verbose_name='covered messages')),
                ('covered_tokens', models.PositiveBigIntegerField(default=0, verbose_name='covered tokens')),
                ('due_since', models.DateTimeField(blank=True, null=True, verbose_name='due since')),
                ('due_revision', models.PositiveBigIntegerField(default=0, editable=False)),
                ('hinted_at', models.DateTimeField(blank=True, null=True, verbose_name='hinted at')),
                ('attempts', models.PositiveIntegerField(default=0, verbose_name='attempts')),
                ('next_attempt_at', models.DateTimeField(blank=True, null=True, verbose_name='next attempt at')),
                ('lease_token', models.CharField(blank=True, default='', editable=False, max_length=32, verbose_name='lease')),
                ('lease_expires_at', models.DateTimeField(blank=True, null=True, verbose_name='leased until')),
                ('last_error', models.TextField(blank=True, default='', verbose_name='last error')),
                ('epoch', models.PositiveBigIntegerField(default=0, verbose_name='epoch')),
                ('revision', models.PositiveBigIntegerField(default=0, verbose_name='revision')),
                ('fork_position', models.PositiveBigIntegerField(blank=True, null=True, verbose_name='forked at')),
                ('counter', models.CharField(blank=True, default='', max_length=100, verbose_name='token counter')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, verbose_name='created at')),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, verbose_name='updated at')),
                ('forked_from', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='convmemory_forks', to='convmemory.session', verbose_name='forked from')),
                ('owner', models.ForeignKey(blank=True, db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='convmemory_sessions', to=settings.AUTH_USER_MODEL, verbose_name='owner')),
            ],
            options={
                'verbose_name': 'session',
                'verbose_name_plural': 'sessions',
                'permissions': [('write_any_role', 'Can write messages of any role through the API')],
            },
        ),
        migrations.CreateModel(
            name='Message',
            fields=[
                ('pk', models.CompositePrimaryKey('session_id', 'position', blank=True, editable=False, primary_key=True, serialize=False)),
                ('position', models.PositiveBigIntegerField(verbose_name='position')),
                ('role', models.CharField(max_length=16, verbose_name='role')),
                ('kind', models.CharField(default='chat', max_length=32, verbose_name='kind')),
                ('content', models.TextField(blank=True, null=True, verbose_name='content')),
                ('wire', django_convmemory.fields.ExactJSONField(blank=True, null=True, verbose_name='rest of the wire form')),
                ('metadata', django_convmemory.fields.ExactJSONField(blank=True, null=True, verbose_name='metadata')),
                ('usage', django_convmemory.fields.ExactJSONField(blank=True, null=True, verbose_name='usage')),
                ('tokens', models.PositiveIntegerField(verbose_name='tokens')),
                ('tokens_through', models.PositiveBigIntegerField(verbose_name='tokens through')),
                ('answers', models.PositiveBigIntegerField(blank=True, null=True, verbose_name='answers')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, verbose_name='created at')),
                ('redacted_at', models.DateTimeField(blank=True, null=True, verbose_name='redacted at')),
                ('idempotency_key', models.CharField(blank=True, editable=False, max_length=64, null=True, verbose_name='idempotency key')),
                ('payload_hash', models.CharField(blank=True, default='', editable=False, max_length=80)),
                ('session', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='convmemory_messages', to='convmemory.session', verbose_name='session')),
            ],
            options={
                'verbose_name': 'message',
                'verbose_name_plural': 'messages',
            },
        ),
        migrations.CreateModel(
            name='Attempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('alias', django_convmemory.fields.ExactCharField(max_length=100, verbose_name='alias')),
                ('first_position', models.PositiveBigIntegerField(verbose_name='first position')),
                ('last_position', models.PositiveBigIntegerField(verbose_name='last position')),
                ('started_at', models.DateTimeField(default=django.utils.timezone.now, verbose_name='started at')),
                ('due_seconds', models.FloatField(default=0.0, verbose_name='due before the claim (s)')),
                ('duration_seconds', models.FloatField(default=0.0, verbose_name='duration (s)')),
                ('outcome', models.CharField(choices=[('published', 'published'), ('shorten', 'too long, asked for a shorter text'), ('dropped', 'dropped: the session had changed'), ('unavailable', 'model unavailable'), ('misconfigured', 'model misconfigured'), ('context_length', "chunk larger than the model's window"), ('refused', 'content refused'), ('bad_output', 'unusable answer'), ('error', 'error of the backend')], max_length=16, verbose_name='outcome')),
                ('error', models.CharField(blank=True, default='', max_length=300, verbose_name='error')),
                ('model', models.CharField(blank=True, default='', max_length=200, verbose_name='model')),
                ('prompt_tokens', models.PositiveIntegerField(blank=True, null=True, verbose_name='prompt tokens')),
                ('completion_tokens', models.PositiveIntegerField(blank=True, null=True, verbose_name='completion tokens')),
                ('cost', models.DecimalField(blank=True, decimal_places=8, max_digits=14, null=True, verbose_name='cost')),
                ('version', models.PositiveBigIntegerField(blank=True, null=True, verbose_name='version')),
                ('session', models.ForeignKey(blank=True, db_index=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='convmemory_attempts', to='convmemory.session', verbose_name='session')),
            ],
            options={
                'verbose_name': 'attempt',
                'verbose_name_plural': 'attempts',
            },
        ),
        migrations.CreateModel(
            name='Summary',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveBigIntegerField(verbose_name='version')),
                ('parent_version', models.PositiveBigIntegerField(blank=True, null=True, verbose_name='parent version')),
                ('first_position', models.PositiveBigIntegerField(verbose_name='first position')),
                ('last_position', models.PositiveBigIntegerField(verbose_name='last position')),
                ('covered_count', models.PositiveBigIntegerField(verbose_name='covered messages')),
                ('covered_tokens', models.PositiveBigIntegerField(verbose_name='covered tokens')),
                ('text', models.TextField(verbose_name='text')),
                ('tokens', models.PositiveIntegerField(verbose_name='tokens')),
                ('model', models.CharField(blank=True, default='', max_length=200, verbose_name='model')),
                ('shortened', models.BooleanField(default=False, verbose_name='shortened')),
                ('fallback', models.BooleanField(default=False, verbose_name='by the fallback model')),
                ('building', models.BooleanField(default=False, verbose_name='being rebuilt')),
                ('prompt_hash', models.CharField(blank=True, default='', max_length=64, verbose_name='prompt hash')),
                ('invalidated_at', models.DateTimeField(blank=True, null=True, verbose_name='invalidated at')),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, verbose_name='created at')),
                ('session', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='convmemory_summaries', to='convmemory.session', verbose_name='session')),
            ],
            options={
                'verbose_name': 'summary',
                'verbose_name_plural': 'summaries',
            },
        ),
        migrations.AddIndex(
            model_name='session',
            index=models.Index(fields=['alias', 'due_since'], name='convmemory_session_due'),
        ),
        migrations.AddIndex(
            model_name='session',
            index=models.Index(fields=['alias', 'id'], name='convmemory_session_alias'),
        ),
        migrations.AddIndex(
            model_name='session',
            index=models.Index(fields=['owner', 'id'], name='convmemory_session_owner'),
        ),
        migrations.AddIndex(
            model_name='session',
            index=models.Index(fields=['visitor', 'id'], name='convmemory_session_visitor'),
        ),
        migrations.AddConstraint(
            model_name='session',
            constraint=models.UniqueConstraint(fields=('handle',), name='convmemory_session_handle'),
        ),
        migrations.AddIndex(
            model_name='message',
            index=models.Index(fields=['session', 'tokens_through'], name='convmemory_message_through'),
        ),
        migrations.AddConstraint(
            model_name='message',
            constraint=models.UniqueConstraint(fields=('session', 'idempotency_key'), name='convmemory_message_key'),
        ),
        migrations.AddIndex(
            model_name='attempt',
            index=models.Index(fields=['alias', 'started_at'], name='convmemory_attempt_alias'),
        ),
        migrations.AddIndex(
            model_name='attempt',
            index=models.Index(fields=['session', 'id'], name='convmemory_attempt_session'),
        ),
        migrations.AddConstraint(
            model_name='summary',
            constraint=models.UniqueConstraint(fields=('session', 'version'), name='convmemory_summary_version'),
        ),
    ]
