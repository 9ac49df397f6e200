"""The site for an ASGI server: ``uvicorn mysite.asgi:application``.

Static files are served outside of Django, not by a middleware. A synchronous middleware would move every request to
another thread and back.
"""

import os

from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from servestatic import ServeStaticASGI

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")

application = get_asgi_application()
if settings.DEBUG:
    application = ASGIStaticFilesHandler(application)
else:
    application = ServeStaticASGI(application, root=settings.STATIC_ROOT, prefix=settings.STATIC_URL)
