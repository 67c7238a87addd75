from tests.contrib.django.conftest import migrated as migrated
from tests.contrib.django.conftest import postgres as postgres
