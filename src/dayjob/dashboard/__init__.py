"""The dashboard: a web page over one store, by itself or mounted in an ASGI or WSGI application.

It reads through ``dayjob.inspect`` and acts through the broker. Needs ``pip install 'dayjob[dashboard]'``.
"""

from dayjob.dashboard.app import Dashboard, dashboard
from dayjob.dashboard.credentials import User
from dayjob.dashboard.wsgi import WsgiDashboard

__all__ = ["Dashboard", "User", "WsgiDashboard", "dashboard"]
