from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0002_idempotencykey'),
    ]

    operations = [
        migrations.CreateModel(
            name='Incarnation',
            fields=[
                ('number', models.PositiveIntegerField(primary_key=True, serialize=False)),
                ('made_by', models.CharField(max_length=200)),
                ('begun_at', models.DateTimeField(auto_now_add=True)),
                ('finished_at', models.DateTimeField(null=True)),
            ],
        ),
    ]
