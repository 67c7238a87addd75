"""The dashboard: a web page over one store, by itself or mounted in an ASGI application.

It reads through ``dayjob.inspect`` and acts through the broker. Needs ``pip install 'dayjob[dashboard]'``.
"""

from dayjob.dashboard.app import Dashboard, dashboard
from dayjob.dashboard.credentials import User

__all__ = ["Dashboard", "User", "dashboard"]
