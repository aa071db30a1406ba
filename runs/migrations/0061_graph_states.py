"""Add the states of graphs: threads, and the values of runs and threads."""

from __future__ import annotations

import django.db.models.deletion
import uuid_utils.compat
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0011_queues_and_places'),
        ('runs', '0060_packaged_runs'),
    ]

    operations = [
        migrations.CreateModel(
            name='GraphThread',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=200)),
                ('modified_at', models.DateTimeField()),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='graph_threads', to='projects.project')),
            ],
            options={
                'db_table': 'graph_threads',
            },
        ),
        migrations.CreateModel(
            name='GraphValue',
            fields=[
                ('id', models.UUIDField(default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('checkpoint', 'Checkpoint'), ('channel', 'Channel'), ('write', 'Write')], max_length=10)),
                ('namespace', models.CharField(blank=True, default='', max_length=300)),
                ('checkpoint', models.CharField(blank=True, default='', max_length=64)),
                ('key', models.CharField(blank=True, default='', max_length=300)),
                ('index', models.PositiveSmallIntegerField(default=0)),
                ('step_number', models.PositiveIntegerField(default=0)),
                ('created_at', models.DateTimeField()),
                ('facts', models.JSONField(default=dict)),
                ('text', models.TextField()),
                ('run', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='graph_values', to='runs.agentrun')),
                ('thread', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='values', to='runs.graphthread')),
            ],
            options={
                'db_table': 'graph_values',
            },
        ),
        migrations.AddIndex(
            model_name='graphthread',
            index=models.Index(fields=['project', 'modified_at'], name='graph_thread_old'),
        ),
        migrations.AddConstraint(
            model_name='graphthread',
            constraint=models.UniqueConstraint(fields=('project', 'name'), name='graph_thread_once'),
        ),
        migrations.AddConstraint(
            model_name='graphvalue',
            constraint=models.UniqueConstraint(fields=('run', 'kind', 'namespace', 'checkpoint', 'key', 'index'), name='graph_value_of_run_once'),
        ),
        migrations.AddConstraint(
            model_name='graphvalue',
            constraint=models.UniqueConstraint(fields=('thread', 'kind', 'namespace', 'checkpoint', 'key', 'index'), name='graph_value_of_thread_once'),
        ),
        migrations.AddConstraint(
            model_name='graphvalue',
            constraint=models.CheckConstraint(condition=models.Q(('run__isnull', True), ('thread__isnull', True), _connector='XOR'), name='graph_value_has_one_owner'),
        ),
    ]
