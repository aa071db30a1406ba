import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0001_initial'),
        ('timeline', '0003_append_function'),
    ]

    operations = [
        migrations.CreateModel(
            name='Tombstone',
            fields=[
                ('id', models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ('family', models.UUIDField()),
                ('facts', models.JSONField(default=dict)),
                ('created_at', models.DateTimeField()),
                ('completed_at', models.DateTimeField(null=True)),
                ('reason', models.CharField(max_length=200)),
                ('removed_by', models.CharField(max_length=200)),
                ('removed_at', models.DateTimeField()),
                ('rows', models.JSONField(default=dict)),
                ('finished_at', models.DateTimeField(null=True)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='tombstones', to='projects.project')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('finished_at__isnull', True)), fields=['family'], name='tombstone_unfinished')],
            },
        ),
    ]
