from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0002_commit_function'),
    ]

    operations = [
        migrations.AddField(
            model_name='agentrun',
            name='held_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='agentrun',
            name='removed_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name='agentrun',
            index=models.Index(condition=models.Q(('completed_at__isnull', False), ('removed_at__isnull', True)), fields=['project', 'completed_at', 'log'], name='run_retention'),
        ),
        migrations.CreateModel(
            name='Chore',
            fields=[
                ('name', models.CharField(max_length=32, primary_key=True, serialize=False)),
                ('taken_at', models.DateTimeField()),
            ],
        ),
    ]
