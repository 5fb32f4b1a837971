"""Names looked up, data fed, live objects put together: the rooms behind build."""
