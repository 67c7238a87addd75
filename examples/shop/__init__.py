"""A shop on FastAPI and SQLAlchemy: orders are shipped by jobs, in the transaction of the request."""
