from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('projects', '0009_fill_email_addresses'),
    ]

    operations = [
        migrations.AddConstraint(
            model_name='emailaddress',
            constraint=models.UniqueConstraint(condition=models.Q(('verified_at__isnull', False)), fields=('email',), name='email_address_verified_once'),
        ),
    ]
