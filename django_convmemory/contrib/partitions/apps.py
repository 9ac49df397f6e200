"""The app with the command that partitions the table of messages.

Few sites are so large, and they run the command once. So it is an app of its own, which a site adds to
``INSTALLED_APPS`` for the conversion and may remove afterwards. The partitioned table does not need it.
"""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PartitionsConfig(AppConfig):
    name = "django_convmemory.contrib.partitions"
    label = "convmemory_partitioning"
    verbose_name = _("Partitioning of the conversation memory")
