import django.db.models.deletion
import uuid_utils.compat
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0003_masks_model_input'),
        ('runs', '0026_alerts'),
    ]

    operations = [
        migrations.CreateModel(
            name='Sink',
            fields=[
                ('id', models.UUIDField(default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=63)),
                ('kind', models.CharField(max_length=32)),
                ('origin', models.CharField(choices=[('project', 'Project'), ('environment', 'Environment')], default='project', max_length=11)),
                ('config', models.JSONField(default=dict)),
                ('sealed', models.BinaryField(null=True)),
                ('key_id', models.CharField(blank=True, max_length=16)),
                ('secret_hints', models.JSONField(default=dict)),
                ('event_types', models.JSONField(default=list)),
                ('is_enabled', models.BooleanField(default=True)),
                ('disabled_reason', models.CharField(blank=True, max_length=500)),
                ('created_by', models.CharField(max_length=200)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('project', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='sinks', to='projects.project')),
            ],
            options={
                'db_table': 'agent_run_sinks',
            },
        ),
        migrations.CreateModel(
            name='SinkCursor',
            fields=[
                ('sink', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='cursor', serialize=False, to='runs.sink')),
                ('event_id', models.BigIntegerField(default=0)),
                ('due_at', models.DateTimeField(null=True)),
                ('leased_until', models.DateTimeField(null=True)),
                ('claims', models.BigIntegerField(default=0)),
                ('failures', models.PositiveIntegerField(default=0)),
                ('last_error', models.CharField(blank=True, max_length=500)),
                ('last_error_at', models.DateTimeField(null=True)),
                ('last_success_at', models.DateTimeField(null=True)),
                ('sent_events', models.BigIntegerField(default=0)),
                ('dead_events', models.BigIntegerField(default=0)),
            ],
            options={
                'db_table': 'agent_run_sink_cursors',
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.UUIDField(default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False)),
                ('message_id', models.CharField(max_length=64)),
                ('first_event', models.BigIntegerField(null=True)),
                ('last_event', models.BigIntegerField(null=True)),
                ('event_count', models.PositiveIntegerField(default=1)),
                ('event_type', models.CharField(blank=True, max_length=128)),
                ('run_id', models.UUIDField(null=True)),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('sent', 'Sent'), ('dead', 'Dead')], default='waiting', max_length=7)),
                ('attempts', models.PositiveIntegerField(default=0)),
                ('due_at', models.DateTimeField(null=True)),
                ('status_code', models.PositiveSmallIntegerField(null=True)),
                ('response', models.CharField(blank=True, max_length=1000)),
                ('error', models.CharField(blank=True, max_length=500)),
                ('duration_ms', models.PositiveIntegerField(null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('attempted_at', models.DateTimeField(null=True)),
                ('project', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='projects.project')),
                ('sink', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='runs.sink')),
            ],
            options={
                'verbose_name_plural': 'deliveries',
                'db_table': 'agent_run_deliveries',
            },
        ),
        migrations.AddConstraint(
            model_name='sink',
            constraint=models.UniqueConstraint(fields=('project', 'name'), name='sink_name_once'),
        ),
        migrations.AddConstraint(
            model_name='sink',
            constraint=models.UniqueConstraint(condition=models.Q(('project', None)), fields=('name',), name='sink_of_site_once'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['sink', '-id'], name='deliveries_of_sink'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(models.F('due_at'), condition=models.Q(('due_at__isnull', False)), name='deliveries_due'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('state', 'dead')), fields=['sink', 'id'], name='deliveries_dead'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['created_at'], name='deliveries_oldest'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['waiting', 'sent', 'dead'])), name='delivery_state_known'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('due_at__isnull', False), ('state', 'waiting')), models.Q(models.Q(('state', 'waiting'), _negated=True), ('due_at', None)), _connector='OR'), name='delivery_due_while_waiting'),
        ),
    ]
