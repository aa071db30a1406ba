from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0003_masks_model_input'),
        ('runs', '0027_telemetry'),
        ('timeline', '0004_append_function'),
    ]

    operations = [
        migrations.CreateModel(
            name='MetricCount',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=64)),
                ('labels', models.CharField(blank=True, max_length=400)),
                ('value', models.FloatField(default=0)),
            ],
            options={
                'db_table': 'agent_run_metric_counts',
            },
        ),
        migrations.CreateModel(
            name='MetricPosition',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('event_id', models.BigIntegerField(default=0)),
            ],
            options={
                'db_table': 'agent_run_metric_position',
            },
        ),
        migrations.AddIndex(
            model_name='agentrun',
            index=models.Index(models.F('status'), condition=models.Q(('completed_at__isnull', True)), name='run_unended'),
        ),
        migrations.AddConstraint(
            model_name='metriccount',
            constraint=models.UniqueConstraint(fields=('name', 'labels'), name='metric_count_once'),
        ),
    ]
