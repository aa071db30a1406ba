"""Add remote runs: the version of the code that executes a run, the journal of its steps, and its processes."""

from __future__ import annotations

import django.db.models.deletion
import uuid_utils.compat
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0011_queues_and_places'),
        ('runs', '0057_deaths'),
    ]

    operations = [
        migrations.AddField(
            model_name='agentrun',
            name='code_version',
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='workerprocess',
            name='project',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='projects.project'),
        ),
        migrations.AlterField(
            model_name='runcommand',
            name='type',
            field=models.CharField(choices=[('pause', 'Pause'), ('stop', 'Stop'), ('send', 'Send'), ('reply', 'Reply'), ('signal', 'Signal')], max_length=8),
        ),
        migrations.CreateModel(
            name='RemoteStep',
            fields=[
                ('id', models.UUIDField(default=uuid_utils.compat.uuid7, editable=False, primary_key=True, serialize=False)),
                ('position', models.PositiveIntegerField()),
                ('key', models.CharField(max_length=200)),
                ('kind', models.CharField(choices=[('step', 'Step'), ('model', 'Model'), ('tool', 'Tool'), ('approval', 'Approval'), ('question', 'Question'), ('sleep', 'Sleep'), ('signal', 'Signal'), ('child', 'Child'), ('messages', 'Messages')], max_length=8)),
                ('name', models.CharField(max_length=200)),
                ('state', models.CharField(choices=[('started', 'Started'), ('done', 'Done'), ('failed', 'Failed')], default='started', max_length=7)),
                ('step_number', models.PositiveIntegerField(default=0)),
                ('epoch', models.IntegerField()),
                ('attempt', models.PositiveSmallIntegerField(default=0)),
                ('codec', models.CharField(blank=True, default='', max_length=63)),
                ('pieces', models.PositiveSmallIntegerField(default=0)),
                ('error', models.JSONField(null=True)),
                ('created_at', models.DateTimeField()),
                ('finished_at', models.DateTimeField(null=True)),
                ('value', models.TextField(null=True)),
                ('call', models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='remote_step', to='runs.agentruntoolcall')),
                ('run', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='remote_steps', to='runs.agentrun')),
            ],
            options={
                'db_table': 'agent_run_remote_steps',
            },
        ),
        migrations.CreateModel(
            name='RemoteStepPiece',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('index', models.PositiveSmallIntegerField()),
                ('text', models.TextField()),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='runs.agentrun')),
                ('step', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='value_pieces', to='runs.remotestep')),
            ],
            options={
                'db_table': 'agent_run_remote_step_pieces',
            },
        ),
        migrations.AddConstraint(
            model_name='remotestep',
            constraint=models.UniqueConstraint(fields=('run', 'position'), name='remote_step_position_once'),
        ),
        migrations.AddConstraint(
            model_name='remotestep',
            constraint=models.UniqueConstraint(fields=('run', 'key'), name='remote_step_key_once'),
        ),
        migrations.AddConstraint(
            model_name='remotesteppiece',
            constraint=models.UniqueConstraint(fields=('step', 'index'), name='remote_step_piece_once'),
        ),
    ]
